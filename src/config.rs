//! Configuration: one file, environment over it, every fault reported at once.
//!
//! The file is TOML; each key `section.key` is also `REFUND_BATCHER__SECTION__KEY` in the
//! environment (`REFUND_BATCHER__MERCHANTS__0__MCHID` for the first merchant), which wins.
//! [`Settings::load`] reads and checks; nothing behind it checks again.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use config::{Config, File, FileFormat};
use serde_json::{Map, Value};
use zeroize::Zeroizing;

use crate::commit::CommitLimits;
use crate::core::decide::DecideLimits;
use crate::core::keyring::{ApiV3Key, KeyRing, MerchantKeys, TrustedKey};
use crate::core::sql::LIST_MAX;
use crate::core::types::{Mchid, UnixMs};
use crate::flush::FlushLimits;
use crate::relay::RelayLimits;

/// Where the configuration is looked for when none is named.
pub const DEFAULT_FILE: &str = "refund-batcher.toml";
/// Before each environment variable of ours.
const ENV_PREFIX: &str = "REFUND_BATCHER__";
/// Connections beside those of committers and flushers: relay, repeat counts, slow lane, readiness.
const CONNECTIONS_BESIDE: usize = 4;

/// Every key that there is, by section.
const KEYS: &[(&str, &[&str])] = &[
    (
        "http",
        &[
            "listen",
            "notify_paths",
            "reply_deadline_ms",
            "body_bytes_max",
        ],
    ),
    ("admin", &["listen"]),
    ("database", &["url", "migrate", "connections_max"]),
    (
        "commit",
        &[
            "workers",
            "group_max",
            "group_bytes_max",
            "queue_max",
            "queue_bytes_max",
        ],
    ),
    (
        "flush",
        &[
            "workers",
            "rows_max",
            "wait_ms",
            "queue_max",
            "attempts_max",
        ],
    ),
    (
        "relay",
        &[
            "poll_ms",
            "rows_max",
            "grace_ms",
            "lease_ms",
            "orphan_after_ms",
        ],
    ),
    ("shutdown", &["grace_ms"]),
];
const MERCHANT_KEYS: &[&str] = &[
    "mchid",
    "api_v3_key_files",
    "verify_keys",
    "merchant_serial",
    "merchant_key_file",
];
const VERIFY_KEY_KEYS: &[&str] = &["serial", "file"];

/// A fault of the configuration: the key, what is wrong, and what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// `section.key`.
    pub key: String,
    /// What is wrong with its value.
    pub fault: String,
    /// What to do about it.
    pub remedy: String,
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}; {}", self.key, self.fault, self.remedy)
    }
}

/// All faults of a configuration.
#[derive(Debug)]
pub struct ConfigError(pub Vec<Fault>);

impl std::fmt::Display for ConfigError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "the configuration has {} fault(s)", self.0.len())?;
        self.0.iter().try_for_each(|fault| write!(f, "\n  {fault}"))
    }
}

impl std::error::Error for ConfigError {}

/// The checked configuration. Fields in the order of the file; each limit says what happens there.
pub struct Settings {
    /// `http.listen`: where WeChat Pay's deliveries arrive. Default `127.0.0.1:8080`.
    pub http_listen: SocketAddr,
    /// `http.notify_paths`: more paths, for addresses given to WeChat Pay in the past. Default none.
    pub notify_paths: Vec<String>,
    /// `http.reply_deadline_ms`: from the request head to the answer, 100 to 4500, default 3000;
    /// past it the answer is 503 and WeChat Pay sends again.
    pub reply_deadline: Duration,
    /// `http.body_bytes_max`: 4096 to 8 MiB, default 65536; a larger body is answered with 413.
    pub body_bytes_max: usize,
    /// `admin.listen`: metrics. Default `127.0.0.1:9090`; keep it off public networks.
    pub admin_listen: SocketAddr,
    /// `database`.
    pub database: DatabaseSettings,
    /// `[[merchants]]`, as one ring of keys.
    pub ring: KeyRing,
    /// What was noticed about keys that hinders nothing yet.
    pub warnings: Vec<String>,
    /// `commit`: deliveries to one transaction. On SQLite `workers` is always 1.
    pub commit: CommitLimits,
    /// `flush`: committed facts to batched ledger and order updates. On SQLite `workers` is always 1.
    pub flush: FlushLimits,
    /// `relay`: what was left over.
    pub relay: RelayLimits,
    /// `shutdown.grace_ms`: how long a drain may take, 0 to 600000, default 20000.
    pub shutdown_grace: Duration,
}

/// `[database]`.
#[derive(Clone, PartialEq, Eq)]
pub struct DatabaseSettings {
    /// `url`: `sqlite://FILE` or `mysql://user:password@host:3306/name`, also `?socket=PATH`.
    /// Default `sqlite://refund-batcher.db`.
    pub url: String,
    /// `migrate`: whether `serve` applies migrations. Default true on SQLite only.
    pub migrate: bool,
    /// `connections_max`: 8 to 256, default 16; not for SQLite.
    pub connections_max: usize,
}

impl DatabaseSettings {
    /// The settings for an address, all else at its default.
    pub fn for_url(url: &str) -> DatabaseSettings {
        DatabaseSettings {
            url: url.to_owned(),
            migrate: url.starts_with("sqlite:"),
            connections_max: 16,
        }
    }
}

impl Settings {
    /// Reads the file (the default one only where it exists) and the environment, and checks all.
    ///
    /// Shapes: `environment`, names and values; `now`, to compare certificates with.
    /// Errors: all faults together.
    pub fn load(
        file: Option<&Path>,
        environment: impl Iterator<Item = (String, String)>,
        now: UnixMs,
    ) -> Result<Settings, ConfigError> {
        let path = file.map_or_else(|| PathBuf::from(DEFAULT_FILE), Path::to_path_buf);
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if file.is_none() && error.kind() == std::io::ErrorKind::NotFound => {
                String::new()
            }
            Err(error) => {
                return Err(one_fault(
                    &path.display().to_string(),
                    &error.to_string(),
                    "name a readable file with --config",
                ));
            }
        };
        let folder = path.parent().map(Path::to_path_buf).unwrap_or_default();
        Settings::from_text(&text, &folder, environment, now)
    }

    /// The same from a text; key files are looked for from `folder` on.
    pub fn from_text(
        text: &str,
        folder: &Path,
        environment: impl Iterator<Item = (String, String)>,
        now: UnixMs,
    ) -> Result<Settings, ConfigError> {
        let mut builder = Config::builder().add_source(File::from_str(text, FileFormat::Toml));
        for (name, value) in environment {
            if let Some(path) = env_path(&name) {
                builder = builder.set_override(path, value).map_err(|error| {
                    one_fault(
                        &name,
                        &error.to_string(),
                        "name it REFUND_BATCHER__SECTION__KEY",
                    )
                })?;
            }
        }
        let root: Value = builder
            .build()
            .and_then(Config::try_deserialize)
            .map_err(|error| {
                one_fault(
                    "file",
                    &without_source(&error.to_string()),
                    "correct the TOML",
                )
            })?;
        let Value::Object(root) = root else {
            return Err(one_fault("file", "is not a table", "correct the TOML"));
        };
        Reader {
            root,
            folder: folder.to_path_buf(),
            now,
            faults: Vec::new(),
            warnings: Vec::new(),
        }
        .settings()
    }
}

/// A parser's words without the lines of the file that it quotes: they may hold a password.
fn without_source(message: &str) -> String {
    let quotes = |line: &&str| {
        let rest = line
            .trim_start()
            .trim_start_matches(|c: char| c.is_ascii_digit());
        !rest.trim_start().starts_with('|')
    };
    message
        .lines()
        .filter(quotes)
        .map(str::trim)
        .collect::<Vec<_>>()
        .join(": ")
}

fn one_fault(key: &str, fault: &str, remedy: &str) -> ConfigError {
    ConfigError(vec![Fault {
        key: key.to_owned(),
        fault: fault.to_owned(),
        remedy: remedy.to_owned(),
    }])
}

/// `REFUND_BATCHER__MERCHANTS__0__MCHID` is `merchants[0].mchid`.
fn env_path(name: &str) -> Option<String> {
    let rest = name.strip_prefix(ENV_PREFIX)?;
    let mut path = String::new();
    for part in rest.split("__") {
        if part.bytes().all(|b| b.is_ascii_digit()) && !part.is_empty() {
            path.push_str(&format!("[{part}]"));
        } else {
            if !path.is_empty() {
                path.push('.');
            }
            path.push_str(&part.to_ascii_lowercase());
        }
    }
    Some(path)
}

/// Reads the merged values, collecting every fault on the way.
struct Reader {
    root: Map<String, Value>,
    folder: PathBuf,
    now: UnixMs,
    faults: Vec<Fault>,
    warnings: Vec<String>,
}

impl Reader {
    fn settings(mut self) -> Result<Settings, ConfigError> {
        self.unknown_keys();
        let url = self.text("database", "url", "sqlite://refund-batcher.db");
        let is_sqlite = url.starts_with("sqlite:");
        if !is_sqlite
            && !["mysql://", "mariadb://"]
                .iter()
                .any(|scheme| url.starts_with(scheme))
        {
            self.fault(
                "database.url",
                "is neither sqlite:// nor mysql://",
                "write sqlite://FILE or mysql://user:password@host:3306/name",
            );
        }
        let database = DatabaseSettings {
            migrate: self.boolean("database", "migrate", is_sqlite),
            connections_max: self.size("database", "connections_max", 16, 8, 256),
            url,
        };
        let reply_deadline_ms = self.number("http", "reply_deadline_ms", 3000, 100, 4500);
        let body_bytes_max = self.size("http", "body_bytes_max", 65_536, 4096, 8 << 20);
        let http_listen = self.address("http", "127.0.0.1:8080");
        let admin_listen = self.address("admin", "127.0.0.1:9090");
        let notify_paths = self.paths();
        let commit = CommitLimits {
            workers: self.size("commit", "workers", 4, 1, 64),
            group_max: self.size("commit", "group_max", 64, 1, 512),
            group_bytes_max: self.size("commit", "group_bytes_max", 1 << 20, 4096, 8 << 20),
            queue_max: self.size("commit", "queue_max", 4096, 1, 1_000_000),
            queue_bytes_max: self.size("commit", "queue_bytes_max", 32 << 20, 4096, 1 << 30),
            decide: DecideLimits {
                grace_ms: self.number("relay", "grace_ms", 10_000, 100, 3_600_000),
                orphan_after_ms: self.number(
                    "relay",
                    "orphan_after_ms",
                    86_400_000,
                    1000,
                    i64::MAX / 2,
                ),
            },
        };
        let flush = FlushLimits {
            workers: self.size("flush", "workers", 2, 1, 64),
            rows_max: self.size("flush", "rows_max", 256, 1, LIST_MAX),
            wait_ms: self.number("flush", "wait_ms", 20, 0, 10_000),
            queue_max: self.size("flush", "queue_max", 10_000, 1, 10_000_000),
            attempts_max: self.number("flush", "attempts_max", 8, 1, 1000),
        };
        let relay = RelayLimits {
            poll_ms: u64::try_from(self.number("relay", "poll_ms", 500, 10, 60_000)).unwrap_or(500),
            rows_max: self.size("relay", "rows_max", 512, 1, LIST_MAX),
            lease_ms: self.number("relay", "lease_ms", 30_000, 10_000, 3_600_000),
        };
        let shutdown_ms = self.number("shutdown", "grace_ms", 20_000, 0, 600_000);
        // SQLite has one writer: several committers would only cut its groups into smaller ones
        let (commit, flush) = if is_sqlite {
            (
                CommitLimits {
                    workers: 1,
                    ..commit
                },
                FlushLimits {
                    workers: 1,
                    ..flush
                },
            )
        } else {
            (commit, flush)
        };
        self.together(&database, is_sqlite, &commit, &flush, body_bytes_max);
        let ring = self.merchants();
        match ring {
            Some(ring) if self.faults.is_empty() => Ok(Settings {
                http_listen,
                notify_paths,
                reply_deadline: millis(reply_deadline_ms),
                body_bytes_max,
                admin_listen,
                database,
                ring,
                warnings: self.warnings,
                commit,
                flush,
                relay,
                shutdown_grace: millis(shutdown_ms),
            }),
            _ => Err(ConfigError(self.faults)),
        }
    }

    /// Values that are right alone and wrong together.
    fn together(
        &mut self,
        database: &DatabaseSettings,
        is_sqlite: bool,
        commit: &CommitLimits,
        flush: &FlushLimits,
        body_bytes_max: usize,
    ) {
        let needed = commit.workers + flush.workers + CONNECTIONS_BESIDE;
        if !is_sqlite && database.connections_max < needed {
            self.fault(
                "database.connections_max",
                &format!("is {} where committers, flushers and {CONNECTIONS_BESIDE} others need {needed}", database.connections_max),
                "raise it, or lower commit.workers or flush.workers",
            );
        }
        if commit.queue_max < commit.group_max {
            self.fault(
                "commit.queue_max",
                "is smaller than commit.group_max",
                "raise it to at least one group",
            );
        }
        if commit.queue_bytes_max < commit.group_bytes_max.max(2 * body_bytes_max) {
            self.fault(
                "commit.queue_bytes_max",
                "holds no group, or no two bodies",
                "raise it over commit.group_bytes_max and twice http.body_bytes_max",
            );
        }
        if flush.queue_max < flush.rows_max {
            self.fault(
                "flush.queue_max",
                "is smaller than flush.rows_max",
                "raise it to at least one batch",
            );
        }
    }

    fn fault(&mut self, key: &str, fault: &str, remedy: &str) {
        let (key, fault, remedy) = (key.to_owned(), fault.to_owned(), remedy.to_owned());
        self.faults.push(Fault { key, fault, remedy });
    }

    fn unknown_keys(&mut self) {
        let known = |key: &str| KEYS.iter().find(|(section, _)| *section == key);
        let mut unknown = Vec::new();
        for (section, value) in &self.root {
            match (known(section), value) {
                (None, _) if section == "merchants" => {}
                (None, _) => unknown.push((section.clone(), "is no section".to_owned())),
                (Some((_, keys)), Value::Object(table)) => {
                    for key in table.keys().filter(|key| !keys.contains(&key.as_str())) {
                        unknown.push((format!("{section}.{key}"), "is no key".to_owned()));
                    }
                }
                (Some(_), _) => unknown.push((section.clone(), "is not a table".to_owned())),
            }
        }
        for (key, fault) in unknown {
            self.fault(&key, &fault, "remove it or correct its spelling");
        }
    }

    fn value(&self, section: &str, key: &str) -> Option<&Value> {
        self.root.get(section)?.get(key)
    }

    fn text(&mut self, section: &str, key: &str, default: &str) -> String {
        match self.value(section, key) {
            None => default.to_owned(),
            Some(Value::String(text)) => text.clone(),
            Some(_) => {
                self.fault(
                    &format!("{section}.{key}"),
                    "is not a text",
                    "write it in quotes",
                );
                default.to_owned()
            }
        }
    }

    fn boolean(&mut self, section: &str, key: &str, default: bool) -> bool {
        match self.value(section, key) {
            None => default,
            Some(Value::Bool(value)) => *value,
            Some(Value::String(text)) if text == "true" => true,
            Some(Value::String(text)) if text == "false" => false,
            Some(_) => {
                self.fault(
                    &format!("{section}.{key}"),
                    "is neither true nor false",
                    "write true or false",
                );
                default
            }
        }
    }

    fn number(&mut self, section: &str, key: &str, default: i64, least: i64, most: i64) -> i64 {
        let value = match self.value(section, key) {
            None => return default,
            Some(Value::Number(number)) => number.as_i64(),
            Some(Value::String(text)) => text.trim().parse().ok(),
            Some(_) => None,
        };
        match value {
            Some(value) if (least..=most).contains(&value) => value,
            Some(value) => {
                self.fault(
                    &format!("{section}.{key}"),
                    &format!("{value} is out of range"),
                    &format!("write {least} to {most}"),
                );
                default
            }
            None => {
                self.fault(
                    &format!("{section}.{key}"),
                    "is not a whole number",
                    &format!("write {least} to {most}"),
                );
                default
            }
        }
    }

    fn size(&mut self, section: &str, key: &str, default: i64, least: i64, most: usize) -> usize {
        let most = i64::try_from(most).unwrap_or(i64::MAX);
        usize::try_from(self.number(section, key, default, least, most)).unwrap_or(0)
    }

    fn address(&mut self, section: &str, default: &str) -> SocketAddr {
        let text = self.text(section, "listen", default);
        text.parse().unwrap_or_else(|_| {
            self.fault(
                &format!("{section}.listen"),
                &format!("`{text}` is no address and port"),
                "write one such as 127.0.0.1:8080",
            );
            SocketAddr::from(([127, 0, 0, 1], 0))
        })
    }

    /// A list in the file; in the environment the paths stand with commas between them.
    fn paths(&mut self) -> Vec<String> {
        let paths: Vec<String> = match self.value("http", "notify_paths") {
            None => Vec::new(),
            Some(Value::String(text)) => text
                .split(',')
                .map(str::trim)
                .filter(|p| !p.is_empty())
                .map(str::to_owned)
                .collect(),
            Some(Value::Array(all)) => all
                .iter()
                .map(|path| path.as_str().unwrap_or("").to_owned())
                .collect(),
            Some(_) => vec![String::new()],
        };
        let mut seen = std::collections::HashSet::new();
        for path in &paths {
            let odd = path.split('/').any(|part| part.starts_with(':'))
                || path
                    .bytes()
                    .any(|b| !b.is_ascii_graphic() || b"{}*?#".contains(&b));
            if !path.starts_with('/') || odd {
                self.fault(
                    "http.notify_paths",
                    &format!("`{path}` is no path"),
                    "write paths such as \"/wx/refund/notify\", without query",
                );
            } else if path.starts_with("/notify/wechat/")
                || path == "/healthz"
                || path == "/readyz"
                || !seen.insert(path.clone())
            {
                self.fault(
                    "http.notify_paths",
                    &format!("`{path}` is served already"),
                    "remove it",
                );
            }
        }
        paths
    }

    fn merchants(&mut self) -> Option<KeyRing> {
        let entries = match self.root.get("merchants") {
            Some(Value::Array(entries)) if !entries.is_empty() => entries.clone(),
            _ => {
                self.fault(
                    "merchants",
                    "names no merchant",
                    "add [[merchants]] with mchid, api_v3_key_files and verify_keys",
                );
                return None;
            }
        };
        let mut merchants = Vec::new();
        for (at, entry) in entries.iter().enumerate() {
            let place = format!("merchants[{at}]");
            match entry {
                Value::Object(table) => merchants.extend(self.merchant(&place, table)),
                _ => self.fault(&place, "is not a table", "write it as [[merchants]]"),
            }
        }
        match KeyRing::new(merchants) {
            Ok(ring) => Some(ring),
            Err(error) => {
                self.fault(
                    "merchants",
                    &error.to_string(),
                    "give each merchant one entry and each serial one key",
                );
                None
            }
        }
    }

    fn merchant(&mut self, place: &str, table: &Map<String, Value>) -> Option<MerchantKeys> {
        for key in table
            .keys()
            .filter(|key| !MERCHANT_KEYS.contains(&key.as_str()))
        {
            self.fault(
                &format!("{place}.{key}"),
                "is no key",
                "remove it or correct its spelling",
            );
        }
        let mchid = match table
            .get("mchid")
            .and_then(text_of)
            .map(|text| Mchid::parse(&text))
        {
            Some(Ok(mchid)) => Some(mchid),
            Some(Err(error)) => {
                self.fault(
                    &format!("{place}.mchid"),
                    &error.to_string(),
                    "write the merchant number",
                );
                None
            }
            None => {
                self.fault(
                    &format!("{place}.mchid"),
                    "is missing",
                    "write the merchant number in quotes",
                );
                None
            }
        };
        let mut api_v3_keys = Vec::new();
        let files = text_list(table.get("api_v3_key_files"));
        if files.is_empty() {
            self.fault(
                &format!("{place}.api_v3_key_files"),
                "names no file",
                "name the file that holds the merchant's APIv3 key, newest first",
            );
        }
        for file in files {
            api_v3_keys.extend(self.api_v3_key(&format!("{place}.api_v3_key_files"), &file));
        }
        let own = self.merchants_own(place, table);
        let mut verify_keys = Vec::new();
        let entries = match table.get("verify_keys") {
            Some(Value::Array(entries)) if !entries.is_empty() => entries.clone(),
            _ => {
                self.fault(&format!("{place}.verify_keys"), "names no key", "add [[merchants.verify_keys]] with WeChat Pay's public key and its serial, or a platform certificate");
                Vec::new()
            }
        };
        for (at, entry) in entries.iter().enumerate() {
            let place = format!("{place}.verify_keys[{at}]");
            let Value::Object(entry) = entry else {
                self.fault(
                    &place,
                    "is not a table",
                    "write it as [[merchants.verify_keys]]",
                );
                continue;
            };
            if let Some(key) = self.verify_key(&place, entry) {
                if own.is_of(&key) {
                    self.fault(&format!("{place}.file"), "is the merchant's own certificate or key", "use WeChat Pay's public key or platform certificate: notices are signed by WeChat Pay");
                }
                verify_keys.push(key);
            }
        }
        Some(MerchantKeys {
            mchid: mchid?,
            api_v3_keys,
            verify_keys,
        })
    }

    /// Exactly 32 bytes; one line end behind them, as editors and mounted files add it, is dropped.
    fn api_v3_key(&mut self, key: &str, file: &str) -> Option<ApiV3Key> {
        let bytes = Zeroizing::new(self.read(key, file)?);
        let trimmed = bytes
            .strip_suffix(b"\n")
            .map(|b| b.strip_suffix(b"\r").unwrap_or(b))
            .unwrap_or(&bytes);
        if trimmed.len() != bytes.len() {
            self.warnings.push(format!(
                "{key}: {file} ends with a line end, which is not part of the key"
            ));
        }
        match <[u8; 32]>::try_from(trimmed) {
            Ok(bytes) => Some(Zeroizing::new(bytes)),
            Err(_) => {
                self.fault(
                    key,
                    &format!("{file} holds {} bytes", trimmed.len()),
                    "an APIv3 key has exactly 32 bytes: copy it again from the merchant platform",
                );
                None
            }
        }
    }

    fn verify_key(&mut self, place: &str, table: &Map<String, Value>) -> Option<TrustedKey> {
        for key in table
            .keys()
            .filter(|key| !VERIFY_KEY_KEYS.contains(&key.as_str()))
        {
            self.fault(
                &format!("{place}.{key}"),
                "is no key",
                "remove it or correct its spelling",
            );
        }
        let Some(file) = table.get("file").and_then(text_of) else {
            self.fault(
                &format!("{place}.file"),
                "is missing",
                "name the PEM file of the key",
            );
            return None;
        };
        let pem = self.read(&format!("{place}.file"), &file)?;
        match TrustedKey::from_pem(&pem, table.get("serial").and_then(text_of).as_deref()) {
            Ok(key) => {
                if key.not_after.is_some_and(|end| self.now > end) {
                    self.warnings.push(format!("{place}.file: the certificate {} has expired; notices signed with it are refused", key.serial));
                }
                Some(key)
            }
            Err(error) => {
                self.fault(
                    place,
                    &format!("{file}: {error}"),
                    "use the PEM file that the merchant platform gives",
                );
                None
            }
        }
    }

    fn merchants_own(&mut self, place: &str, table: &Map<String, Value>) -> MerchantsOwn {
        let mut own = MerchantsOwn {
            serial: table.get("merchant_serial").and_then(text_of),
            der: None,
        };
        if let Some(file) = table.get("merchant_key_file").and_then(text_of) {
            let key = format!("{place}.merchant_key_file");
            let pem = self.read(&key, &file).map(Zeroizing::new);
            if let Some(pem) = pem {
                own.der = public_half(&pem);
                if own.der.is_none() {
                    self.fault(
                        &key,
                        &format!("{file} holds no RSA private key in PKCS#8"),
                        "use apiclient_key.pem of the merchant",
                    );
                }
            }
        }
        own
    }

    fn read(&mut self, key: &str, file: &str) -> Option<Vec<u8>> {
        let path = self.folder.join(file);
        match std::fs::read(&path) {
            Ok(bytes) => Some(bytes),
            Err(error) => {
                self.fault(
                    key,
                    &format!("{}: {error}", path.display()),
                    "name a readable file; paths count from the configuration file",
                );
                None
            }
        }
    }
}

/// What the merchant signs with itself, which must not stand among the keys to verify with.
struct MerchantsOwn {
    serial: Option<String>,
    der: Option<Vec<u8>>,
}

impl MerchantsOwn {
    fn is_of(&self, key: &TrustedKey) -> bool {
        let same_serial = self
            .serial
            .as_ref()
            .is_some_and(|own| own.eq_ignore_ascii_case(&key.serial));
        same_serial || self.der.as_ref() == Some(&key.der)
    }
}

/// The public half of a private key, as a certificate holds it.
fn public_half(pem: &[u8]) -> Option<Vec<u8>> {
    use aws_lc_rs::encoding::{AsDer, PublicKeyX509Der};
    use aws_lc_rs::signature::KeyPair;
    let block = x509_parser::pem::Pem::iter_from_buffer(pem).find_map(Result::ok)?;
    let contents = Zeroizing::new(block.contents);
    let pair = aws_lc_rs::rsa::KeyPair::from_pkcs8(&contents).ok()?;
    let der: PublicKeyX509Der<'_> = pair.public_key().as_der().ok()?;
    Some(der.as_ref().to_vec())
}

fn text_of(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        // a merchant number without quotes
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    }
}

/// A list of texts; one text alone counts as a list of one.
fn text_list(value: Option<&Value>) -> Vec<String> {
    match value {
        Some(Value::Array(all)) => all.iter().filter_map(text_of).collect(),
        Some(one) => text_of(one)
            .into_iter()
            .flat_map(|text| {
                text.split(',')
                    .map(|t| t.trim().to_owned())
                    .collect::<Vec<_>>()
            })
            .collect(),
        None => Vec::new(),
    }
}

fn millis(ms: i64) -> Duration {
    Duration::from_millis(u64::try_from(ms).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn faults(text: &str, environment: &[(&str, &str)]) -> Vec<String> {
        let environment = environment
            .iter()
            .map(|(n, v)| ((*n).to_owned(), (*v).to_owned()));
        match Settings::from_text(text, Path::new("."), environment, UnixMs(0)) {
            Ok(_) => Vec::new(),
            Err(ConfigError(faults)) => faults.iter().map(ToString::to_string).collect(),
        }
    }

    #[test]
    fn all_faults_come_together_each_with_its_key_and_remedy() {
        let text = "[http]\nlisten = 'nowhere'\nport = 1\n[flush]\nrows_max = 0\n[colour]\n[[merchants]]\nmchid = 'a b'\n";
        let all = faults(text, &[("REFUND_BATCHER__COMMIT__WORKERS", "many")]);
        for begins in [
            "http.port: is no key",
            "colour: is no section",
            "http.listen: `nowhere`",
            "flush.rows_max: 0 is out of range; write 1 to",
            "commit.workers: is not a whole number",
            "merchants[0].mchid: a character",
            "merchants[0].api_v3_key_files: names no file",
            "merchants[0].verify_keys: names no key",
        ] {
            assert!(
                all.iter().any(|fault| fault.starts_with(begins)),
                "{begins}\n{all:#?}"
            );
        }
        assert_eq!(all.len(), 8, "{all:#?}");
    }

    #[test]
    fn values_that_are_wrong_together_are_named() {
        let text =
            "[database]\nurl = 'mysql://h/d'\nconnections_max = 8\n[flush]\nqueue_max = 10\n";
        let all = faults(text, &[]);
        assert!(
            all.iter()
                .any(|fault| fault.starts_with("database.connections_max: is 8 where")),
            "{all:#?}"
        );
        assert!(
            all.iter()
                .any(|fault| fault.starts_with("flush.queue_max: is smaller")),
            "{all:#?}"
        );
    }

    #[test]
    fn a_file_that_is_no_toml_is_named_without_its_lines() {
        let all = faults("[database]\nurl = \"mysql://u:se\"cret@h/d\"\n", &[]);
        assert_eq!(all.len(), 1);
        assert!(all[0].contains("line 2"), "{all:?}");
        assert!(!all[0].contains("cret"), "{all:?}");
    }

    #[test]
    fn the_environment_names_every_key() {
        assert_eq!(
            env_path("REFUND_BATCHER__HTTP__LISTEN").as_deref(),
            Some("http.listen")
        );
        assert_eq!(
            env_path("REFUND_BATCHER__MERCHANTS__0__VERIFY_KEYS__1__FILE").as_deref(),
            Some("merchants[0].verify_keys[1].file")
        );
        assert_eq!(env_path("REFUND_BATCHER_LOG"), None);
    }
}
