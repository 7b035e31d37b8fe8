//! Statement texts with their binds, for one dialect. Built here, run in the adapters.
//!
//! The same shape gives the same text: lists are padded to powers of two by repeating their last
//! element, and multi-row inserts are cut into powers of two, so a connection prepares a few texts
//! once and the limits on placeholders are never met. Values are always bound.

pub mod commit;
pub mod flush;
pub mod relay;
pub mod schema;
pub mod shop;

use std::collections::BTreeMap;

use super::notice::NoticeKey;

/// Elements at most in one list of a statement.
pub const LIST_MAX: usize = 1024;
/// Elements at most in one bracket of a merchant.
const BRACKET_MAX: usize = 512;
/// Binds at most in one bracketed condition.
const BRACKET_BINDS_MAX: usize = 4096;
/// Brackets at most in one condition; SQLite nests them and goes 1,000 deep.
const BRACKETS_MAX: usize = 256;
/// Merchants at most that are named beside a list of ids: the two lists multiply in the optimizer.
const MERCHANTS_BESIDE_IDS_MAX: usize = 4;

/// Which database reads the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// MariaDB 10.6+ and MySQL 8.0+.
    Mysql,
    /// SQLite: one writer, so no row locks and no index hints.
    Sqlite,
}

impl Dialect {
    /// By primary key, and by nothing else: `state = 'pending'` beside the ids could otherwise
    /// choose the index on states and lock every pending row.
    fn by_primary(self) -> &'static str {
        self.force("PRIMARY")
    }

    fn force(self, index: &'static str) -> &'static str {
        match (self, index) {
            (Dialect::Sqlite, _) => "",
            (Dialect::Mysql, "PRIMARY") => " FORCE INDEX (PRIMARY)",
            (Dialect::Mysql, "refund_order_no") => " FORCE INDEX (refund_order_no)",
            (Dialect::Mysql, "orders_no") => " FORCE INDEX (orders_no)",
            (Dialect::Mysql, "notice_digest") => " FORCE INDEX (notice_digest)",
            (Dialect::Mysql, "notice_due") => " FORCE INDEX (notice_due)",
            (Dialect::Mysql, "refund_ledger_no") => " FORCE INDEX (refund_ledger_no)",
            (Dialect::Mysql, _) => "",
        }
    }

    /// Locks what is free and passes over what is locked by somebody else.
    fn skip_locked(self) -> &'static str {
        match self {
            Dialect::Mysql => " FOR UPDATE SKIP LOCKED",
            Dialect::Sqlite => "",
        }
    }
}

/// A bound value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Bind {
    /// SQL NULL.
    Null,
    /// A whole number.
    Int(i64),
    /// UTF-8 text.
    Text(String),
    /// Bytes.
    Bytes(Vec<u8>),
}

impl From<i64> for Bind {
    fn from(value: i64) -> Bind {
        Bind::Int(value)
    }
}

impl From<&str> for Bind {
    fn from(value: &str) -> Bind {
        Bind::Text(value.to_owned())
    }
}

impl From<String> for Bind {
    fn from(value: String) -> Bind {
        Bind::Text(value)
    }
}

impl From<&[u8]> for Bind {
    fn from(value: &[u8]) -> Bind {
        Bind::Bytes(value.to_vec())
    }
}

impl<T: Into<Bind>> From<Option<T>> for Bind {
    fn from(value: Option<T>) -> Bind {
        value.map_or(Bind::Null, Into::into)
    }
}

/// One statement, ready to run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Statement {
    /// The text, with one `?` for each bind.
    pub text: String,
    /// The values, in the order of the text.
    pub binds: Vec<Bind>,
}

impl Statement {
    /// A statement that begins with `text`.
    pub fn new(text: &str) -> Statement {
        Statement {
            text: text.to_owned(),
            binds: Vec::new(),
        }
    }

    fn sql(mut self, text: &str) -> Statement {
        self.text.push_str(text);
        self
    }

    fn bind(mut self, value: impl Into<Bind>) -> Statement {
        self.text.push('?');
        self.binds.push(value.into());
        self
    }

    /// `(?, ?, …)`, padded to a power of two.
    fn list(mut self, values: impl IntoIterator<Item = Bind>) -> Statement {
        let start = self.binds.len();
        self.binds.extend(values);
        let count = pad(&mut self.binds, start);
        self.text.push('(');
        self.text.push_str(&placeholders(count));
        self.text.push(')');
        self
    }

    /// `id IN (…) AND mchid IN (…)`: the primary key, with the merchants, where they are few, so that
    /// a partitioned table is read in their partitions only.
    fn keys<'a>(self, keys: impl IntoIterator<Item = &'a NoticeKey> + Clone) -> Statement {
        self.ids(keys.into_iter().map(|key| (key.id, key.mchid.as_str())))
    }

    fn ids<'a>(self, rows: impl IntoIterator<Item = (i64, &'a str)>) -> Statement {
        let (ids, mut mchids): (Vec<i64>, Vec<&str>) = rows.into_iter().unzip();
        mchids.sort_unstable();
        mchids.dedup();
        let statement = self.sql("id IN ").list(ids.into_iter().map(Bind::from));
        if mchids.len() > MERCHANTS_BESIDE_IDS_MAX {
            return statement;
        }
        statement
            .sql(" AND mchid IN ")
            .list(mchids.into_iter().map(Bind::from))
    }

    /// `column = CASE id WHEN ? THEN ? … ELSE column END`; `then` is the text of one value and
    /// holds one `?`. A row without a branch keeps what it has.
    fn case(self, column: &str, then: &str, values: Vec<(i64, Bind)>) -> Statement {
        let els = format!(" ELSE {column} END");
        self.sql(column)
            .sql(" = ")
            .case_value(then, values)
            .sql(&els)
    }

    fn case_value(mut self, then: &str, values: Vec<(i64, Bind)>) -> Statement {
        let start = self.binds.len();
        for (id, value) in values {
            self.binds.push(Bind::Int(id));
            self.binds.push(value);
        }
        let pairs = pad_groups(&mut self.binds, start, 2);
        self.text.push_str("CASE id");
        for _ in 0..pairs {
            self.text.push_str(" WHEN ? THEN ");
            self.text.push_str(then);
        }
        self
    }
}

/// `?, ?, …`
fn placeholders(count: usize) -> String {
    let mut text = "?, ".repeat(count);
    text.truncate(text.len().saturating_sub(2));
    text
}

/// Pads the binds from `start` on to a power of two with the last one; gives their count.
fn pad(binds: &mut Vec<Bind>, start: usize) -> usize {
    pad_groups(binds, start, 1)
}

/// The same for groups of `width` binds; gives the count of groups.
fn pad_groups(binds: &mut Vec<Bind>, start: usize, width: usize) -> usize {
    let count = (binds.len() - start) / width;
    assert!(count > 0, "a list in a statement has elements");
    let padded = count.next_power_of_two();
    let last: Vec<Bind> = binds[binds.len() - width..].to_vec();
    for _ in count..padded {
        binds.extend_from_slice(&last);
    }
    padded
}

/// Selects rows by (merchant, own number): one bracket for each merchant, never a list of tuples.
///
/// Shapes: `pairs`, 1 or more, any order; gives one statement for each class of bracket sizes, so
/// that the texts stay few whatever the mix of merchants is.
fn select_by_merchant(
    head: &str,
    column: &str,
    pairs: Vec<(&str, Bind)>,
    tail: &str,
) -> Vec<Statement> {
    let mut by_merchant: BTreeMap<&str, Vec<Bind>> = BTreeMap::new();
    for (mchid, value) in pairs {
        by_merchant.entry(mchid).or_default().push(value);
    }
    let mut classes: BTreeMap<usize, Vec<Vec<Bind>>> = BTreeMap::new();
    for (mchid, values) in by_merchant {
        for chunk in values.chunks(BRACKET_MAX) {
            let mut bracket = vec![Bind::from(mchid)];
            bracket.extend_from_slice(chunk);
            let size = pad(&mut bracket, 1);
            classes.entry(size).or_default().push(bracket);
        }
    }
    let mut statements = Vec::new();
    for (size, brackets) in classes {
        let bracket_text = format!("(mchid = ? AND {column} IN ({}))", placeholders(size));
        let brackets_max = (BRACKET_BINDS_MAX / (size + 1)).next_power_of_two() / 2;
        for some in brackets.chunks(brackets_max.min(BRACKETS_MAX)) {
            let mut binds: Vec<Bind> = some.iter().flatten().cloned().collect();
            let count = pad_groups(&mut binds, 0, size + 1);
            let condition = vec![bracket_text.as_str(); count].join(" OR ");
            statements.push(Statement {
                text: format!("{head} WHERE {condition}{tail}"),
                binds,
            });
        }
    }
    statements
}

/// Multi-row inserts in powers of two, biggest first.
///
/// Shapes: `rows`, each as long as `columns` has names; `rows_max`, a power of two.
fn insert(table: &str, columns: &str, rows: Vec<Vec<Bind>>, rows_max: usize) -> Vec<Statement> {
    let width = columns.split(", ").count();
    let row_text = format!("({})", placeholders(width));
    let mut statements = Vec::new();
    let mut rest = rows.into_iter().peekable();
    while rest.peek().is_some() {
        let left = rest.len();
        let floor = 1 << left.ilog2();
        let take = usize::min(floor, rows_max);
        let binds: Vec<Bind> = rest.by_ref().take(take).flatten().collect();
        assert_eq!(
            binds.len(),
            take * width,
            "a row has a value for each column"
        );
        statements.push(Statement {
            text: format!(
                "INSERT INTO {table} ({columns}) VALUES {}",
                vec![row_text.as_str(); take].join(", ")
            ),
            binds,
        });
    }
    statements
}

/// A value as a database gave it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// SQL NULL.
    Null,
    /// A whole number.
    Int(i64),
    /// Text.
    Text(String),
    /// Bytes.
    Bytes(Vec<u8>),
}

/// One row, in the order of the statement's columns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row(pub Vec<Value>);

/// A column that holds something else than its kind.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("column {0} of a row holds what it cannot hold")]
pub struct BadRow(pub usize);

impl Row {
    fn value(&self, at: usize) -> Result<&Value, BadRow> {
        self.0.get(at).ok_or(BadRow(at))
    }

    /// A whole number.
    pub fn int(&self, at: usize) -> Result<i64, BadRow> {
        self.opt_int(at)?.ok_or(BadRow(at))
    }

    /// A whole number or NULL.
    pub fn opt_int(&self, at: usize) -> Result<Option<i64>, BadRow> {
        match self.value(at)? {
            Value::Null => Ok(None),
            Value::Int(value) => Ok(Some(*value)),
            Value::Text(_) | Value::Bytes(_) => Err(BadRow(at)),
        }
    }

    /// A text.
    pub fn text(&self, at: usize) -> Result<String, BadRow> {
        self.opt_text(at)?.ok_or(BadRow(at))
    }

    /// A text or NULL.
    pub fn opt_text(&self, at: usize) -> Result<Option<String>, BadRow> {
        match self.value(at)? {
            Value::Null => Ok(None),
            Value::Text(value) => Ok(Some(value.clone())),
            // text under a binary collation comes as bytes
            Value::Bytes(value) => String::from_utf8(value.clone())
                .map(Some)
                .map_err(|_| BadRow(at)),
            Value::Int(_) => Err(BadRow(at)),
        }
    }

    /// Exactly 32 bytes.
    pub fn digest(&self, at: usize) -> Result<super::fact::Digest, BadRow> {
        match self.value(at)? {
            Value::Bytes(bytes) => bytes
                .as_slice()
                .try_into()
                .map(super::fact::Digest)
                .map_err(|_| BadRow(at)),
            Value::Null | Value::Int(_) | Value::Text(_) => Err(BadRow(at)),
        }
    }

    /// The key of a notice: its id and its merchant, side by side.
    pub fn notice_key(&self, at: usize) -> Result<NoticeKey, BadRow> {
        Ok(NoticeKey {
            id: self.int(at)?,
            mchid: super::types::Mchid::stored(self.text(at + 1)?),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashSet;

    #[test]
    fn lists_are_padded_with_their_last_element() {
        let statement = Statement::new("x IN ").list((1..=3).map(Bind::Int));
        assert_eq!(statement.text, "x IN (?, ?, ?, ?)");
        assert_eq!(statement.binds, [1, 2, 3, 3].map(Bind::Int));
    }

    #[test]
    fn a_case_keeps_what_has_no_branch() {
        let values = vec![(11, Bind::from("a")), (13, Bind::Null)];
        let statement = Statement::new("SET ").case("synced_at", "?", values);
        assert_eq!(
            statement.text,
            "SET synced_at = CASE id WHEN ? THEN ? WHEN ? THEN ? ELSE synced_at END"
        );
    }

    #[test]
    fn one_merchant_is_one_bracket_and_never_a_tuple() {
        let pairs = vec![("m", Bind::from("a")), ("m", Bind::from("b"))];
        let statements = select_by_merchant("SELECT 1 FROM t", "no", pairs, " FOR UPDATE");
        assert_eq!(statements.len(), 1);
        assert_eq!(
            statements[0].text,
            "SELECT 1 FROM t WHERE (mchid = ? AND no IN (?, ?)) FOR UPDATE"
        );
    }

    #[test]
    fn inserts_are_cut_into_powers_of_two() {
        let rows = (0..11).map(|n| vec![Bind::Int(n), Bind::Null]).collect();
        let statements = insert("t", "a, b", rows, 4);
        let sizes: Vec<usize> = statements.iter().map(|s| s.binds.len() / 2).collect();
        assert_eq!(sizes, [4, 4, 2, 1]);
        assert_eq!(statements[3].text, "INSERT INTO t (a, b) VALUES (?, ?)");
    }

    proptest! {
        /// Every pair is asked for, nothing else is, placeholders equal binds, and however the
        /// merchants are mixed the texts are few.
        #[test]
        fn brackets_cover_exactly_their_pairs(
            pairs in prop::collection::vec((0_u8..40, 0_u16..2000), 1..1500)
        ) {
            let names: Vec<String> = (0..40).map(|n| format!("m{n}")).collect();
            let asked: Vec<(&str, Bind)> = pairs
                .iter()
                .map(|(m, v)| (names[usize::from(*m)].as_str(), Bind::Int(i64::from(*v))))
                .collect();
            let wanted: HashSet<(String, i64)> =
                pairs.iter().map(|(m, v)| (format!("m{m}"), i64::from(*v))).collect();
            let mut found = HashSet::new();
            for statement in select_by_merchant("S", "v", asked, "") {
                prop_assert_eq!(statement.text.matches('?').count(), statement.binds.len());
                prop_assert!(statement.binds.len() <= 2 * BRACKET_BINDS_MAX);
                let mut merchant = String::new();
                for bind in &statement.binds {
                    match bind {
                        Bind::Text(name) => merchant.clone_from(name),
                        Bind::Int(value) => { found.insert((merchant.clone(), *value)); }
                        Bind::Null | Bind::Bytes(_) => prop_assert!(false),
                    }
                }
            }
            prop_assert_eq!(found, wanted);
        }
    }
}
