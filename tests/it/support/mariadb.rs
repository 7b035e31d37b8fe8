//! The MariaDB that `tests/with-mariadb` started, and private ones for tests that stop theirs.

use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::raw::Raw;

/// Names the shared server; `tests/with-mariadb` sets it.
const VARIABLE: &str = "REFUND_BATCHER_TEST_MYSQL";
/// How long a private server may take to start or to install.
const START_MAX: Duration = Duration::from_secs(60);

/// Makes an empty schema on the shared server; gives its address.
pub(crate) async fn new_schema() -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let server = std::env::var(VARIABLE).unwrap_or_else(|_| {
        panic!("{VARIABLE} is not set: run `make test`, or `tests/with-mariadb cargo test`, which start MariaDB")
    });
    let name = format!(
        "t{}_{}",
        std::process::id(),
        COUNT.fetch_add(1, Ordering::Relaxed)
    );
    new_schema_on(&server, &name).await
}

/// Makes an empty schema on the server at this address, which ends with `/`; gives its address.
async fn new_schema_on(server: &str, name: &str) -> String {
    let mut raw = Raw::open(server).await;
    raw.run(&format!("CREATE DATABASE {name} CHARACTER SET utf8mb4"))
        .await;
    format!("{server}{name}")
}

/// A MariaDB of one test's own, to be stopped and frozen at will. Ends with its owner.
pub(crate) struct PrivateServer {
    folder: TempDir,
    port: u16,
    process: Option<Child>,
    schemas: u32,
}

impl PrivateServer {
    /// Installs and starts one; it answers when this returns.
    pub(crate) async fn start_new() -> PrivateServer {
        let folder = tempfile::tempdir().unwrap();
        let install = program("mariadb-install-db")
            .arg("--no-defaults")
            .arg(format!("--user={}", user()))
            .arg(format!(
                "--datadir={}",
                folder.path().join("data").display()
            ))
            .args(["--auth-root-authentication-method=normal", "--skip-test-db"])
            .stdin(Stdio::null())
            .output()
            .expect("mariadb-install-db is there: `make test` installs it");
        let said = String::from_utf8_lossy(&install.stderr);
        assert!(
            install.status.success(),
            "mariadb-install-db failed: {said}"
        );
        let port = std::net::TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap()
            .port();
        let mut server = PrivateServer {
            folder,
            port,
            process: None,
            schemas: 0,
        };
        server.start().await;
        server
    }

    /// Starts it again on the same data and port.
    pub(crate) async fn start(&mut self) {
        assert!(self.process.is_none(), "it runs already");
        let folder = self.folder.path();
        let file = |name: &str| folder.join(name).display().to_string();
        let process = program("mariadbd")
            .arg("--no-defaults")
            .args([
                format!("--user={}", user()),
                format!("--datadir={}", file("data")),
            ])
            .args([
                format!("--socket={}", file("s.sock")),
                format!("--port={}", self.port),
            ])
            .args([
                format!("--pid-file={}", file("pid")),
                format!("--log-error={}", file("error.log")),
            ])
            .args([
                "--bind-address=127.0.0.1",
                "--innodb-flush-log-at-trx-commit=1",
                "--innodb-buffer-pool-size=32M",
            ])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("mariadbd is there: `make test` installs it");
        self.process = Some(process);
        let mut looks = tokio::time::interval(Duration::from_millis(20));
        let started = Instant::now();
        while let Err(error) = Raw::try_open(&self.url()).await {
            let ended = self.process.as_mut().unwrap().try_wait().unwrap();
            let log = std::fs::read_to_string(file("error.log")).unwrap_or_default();
            assert!(
                ended.is_none() && started.elapsed() < START_MAX,
                "no answer ({error}), its log: {log}"
            );
            looks.tick().await;
        }
    }

    /// Its address without a database name.
    pub(crate) fn url(&self) -> String {
        format!("mysql://root@127.0.0.1:{}/", self.port)
    }

    /// Makes an empty schema; gives its address.
    pub(crate) async fn new_schema(&mut self) -> String {
        self.schemas += 1;
        new_schema_on(&self.url(), &format!("t{}", self.schemas)).await
    }

    /// Ends it as a power cut would.
    pub(crate) fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            // gone already is as good
            drop(process.kill());
            process.wait().unwrap();
        }
    }

    /// Stops it from doing anything, its connections staying open; `thaw` lets it go on.
    pub(crate) fn freeze(&self) {
        self.signal("-STOP");
    }

    /// Lets it go on.
    pub(crate) fn thaw(&self) {
        self.signal("-CONT");
    }

    fn signal(&self, signal: &str) {
        let id = self.process.as_ref().expect("it runs").id().to_string();
        assert!(
            Command::new("kill")
                .args([signal, &id])
                .status()
                .unwrap()
                .success()
        );
    }
}

impl Drop for PrivateServer {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A server's program; it lies in a folder that is not on everybody's path.
fn program(name: &str) -> Command {
    let path = std::env::var("PATH").unwrap_or_default();
    let mut command = Command::new("env");
    command
        .arg(format!("PATH={path}:/usr/local/sbin:/usr/sbin:/sbin"))
        .arg(name);
    command
}

fn user() -> String {
    let named = Command::new("id").arg("-un").output().unwrap();
    String::from_utf8(named.stdout).unwrap().trim().to_owned()
}
