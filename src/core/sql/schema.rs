//! What the tables must look like on MySQL and MariaDB, read from the migrations themselves, and the
//! statements that bring a table back to it.

use super::Statement;

/// A key that a table must have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WantedIndex {
    /// Its name, by which statements force it.
    pub name: String,
    /// Its columns as `information_schema` lists them, `mchid,digest`.
    pub columns: String,
    /// What adds it: `UNIQUE KEY name (columns)`.
    pub clause: String,
}

/// A text column that must compare byte by byte.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WantedText {
    /// Its name.
    pub name: String,
    /// Its type, `VARCHAR(32)`.
    pub kind: String,
    /// `NOT NULL`, a default and the like.
    pub rest: String,
}

/// The keys in a migration's CREATE TABLE, the primary key left out.
pub fn wanted_indexes(migration: &str) -> Vec<WantedIndex> {
    lines(migration)
        .filter_map(|line| {
            let rest = line
                .strip_prefix("UNIQUE KEY ")
                .or_else(|| line.strip_prefix("KEY "))?;
            let (name, columns) = rest.split_once(" (")?;
            Some(WantedIndex {
                name: name.to_owned(),
                columns: columns.trim_end_matches(')').replace(", ", ","),
                clause: line.to_owned(),
            })
        })
        .collect()
}

/// The text columns in a migration's CREATE TABLE.
pub fn wanted_texts(migration: &str) -> Vec<WantedText> {
    lines(migration)
        .filter_map(|line| {
            let (name, rest) = line.split_once(' ')?;
            let (kind, rest) = rest.split_once(' ').unwrap_or((rest, ""));
            kind.starts_with("VARCHAR(").then(|| WantedText {
                name: name.to_owned(),
                kind: kind.to_owned(),
                rest: rest.to_owned(),
            })
        })
        .collect()
}

fn lines(migration: &str) -> impl Iterator<Item = &str> {
    migration
        .lines()
        .map(|line| line.trim().trim_end_matches(','))
}

impl WantedText {
    /// Brings the column back, ready to run.
    pub fn remedy(&self, table: &str) -> String {
        let WantedText { name, kind, rest } = self;
        format!(
            "ALTER TABLE {table} MODIFY {name} {kind} CHARACTER SET utf8mb4 COLLATE utf8mb4_bin {rest};"
        )
    }
}

impl WantedIndex {
    /// Adds the key, ready to run; `there` when one of its name is there with other columns.
    pub fn remedy(&self, table: &str, there: bool) -> String {
        let drop = if there {
            format!("DROP KEY {}, ", self.name)
        } else {
            String::new()
        };
        format!("ALTER TABLE {table} {drop}ADD {};", self.clause)
    }
}

/// The keys of a table: rows of name and columns in their order.
pub fn indexes_of(table: &str) -> Statement {
    Statement::new(
        "SELECT index_name, GROUP_CONCAT(column_name ORDER BY seq_in_index SEPARATOR ',') \
         FROM information_schema.statistics WHERE table_schema = DATABASE() AND table_name = ",
    )
    .bind(table)
    .sql(" GROUP BY index_name")
}

/// The text columns of a table: rows of name and collation.
pub fn collations_of(table: &str) -> Statement {
    Statement::new(
        "SELECT column_name, collation_name FROM information_schema.columns \
         WHERE table_schema = DATABASE() AND collation_name IS NOT NULL AND table_name = ",
    )
    .bind(table)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "-- why\nCREATE TABLE t (\n    id BIGINT NOT NULL AUTO_INCREMENT,\n    \
                         mchid VARCHAR(32) NOT NULL,\n    reason VARCHAR(255) NULL,\n    \
                         PRIMARY KEY (id, mchid),\n    UNIQUE KEY t_no (mchid, no),\n    KEY t_due (state)\n) ENGINE = InnoDB;\n";

    #[test]
    fn what_a_migration_wants_and_what_brings_it_back() {
        let indexes = wanted_indexes(TABLE);
        assert_eq!(indexes.len(), 2);
        assert_eq!(
            (indexes[0].name.as_str(), indexes[0].columns.as_str()),
            ("t_no", "mchid,no")
        );
        assert_eq!(
            indexes[0].remedy("t", false),
            "ALTER TABLE t ADD UNIQUE KEY t_no (mchid, no);"
        );
        assert_eq!(
            indexes[1].remedy("t", true),
            "ALTER TABLE t DROP KEY t_due, ADD KEY t_due (state);"
        );
        let texts = wanted_texts(TABLE);
        assert_eq!(texts.len(), 2);
        assert_eq!(
            texts[0].remedy("t"),
            "ALTER TABLE t MODIFY mchid VARCHAR(32) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL;"
        );
    }
}
