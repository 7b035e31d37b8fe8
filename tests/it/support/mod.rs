//! What the tests share: a service on free ports over its own database, a clock that can be set,
//! and the simulated WeChat Pay that sends to it.

pub(crate) mod catalogue;
pub(crate) mod mariadb;
pub(crate) mod raw;
pub(crate) mod stage;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use platform::{Envelope, Form, Merchant, RefundNotice, Reply, Seeded, Sender, SigningKey};
use refund_batcher::adapters::clock::{SystemClock, SystemEntropy};
use refund_batcher::adapters::sql::Database;
use refund_batcher::app::{App, Parts};
use refund_batcher::config::{DatabaseSettings, Settings};
use refund_batcher::core::sql::shop::{Books, NewOrder, NewRefund};
use refund_batcher::core::types::UnixMs;
use refund_batcher::ports::Clock;
use tempfile::TempDir;

/// The made-up merchant of most tests.
pub(crate) const MCHID: &str = "1900000001";
pub(crate) const API_V3_KEY: &str = "test-only-apiv3-key-of-32-bytes!";
pub(crate) const SERIAL: &str = "PUB_KEY_ID_0119000000012026000000000001";

/// A clock that tests set.
#[derive(Debug)]
pub(crate) struct TestClock(AtomicI64);

impl TestClock {
    pub(crate) fn at(unix_ms: i64) -> Arc<TestClock> {
        Arc::new(TestClock(AtomicI64::new(unix_ms)))
    }

    pub(crate) fn set(&self, unix_ms: i64) {
        self.0.store(unix_ms, Ordering::SeqCst);
    }

    pub(crate) fn advance(&self, ms: i64) {
        self.0.fetch_add(ms, Ordering::SeqCst);
    }
}

impl Clock for TestClock {
    fn now(&self) -> UnixMs {
        UnixMs(self.0.load(Ordering::SeqCst))
    }
}

/// A database of its own for one test, with all tables in it.
pub(crate) struct TestDatabase {
    pub(crate) database: Database,
    pub(crate) url: String,
    /// Holds the SQLite file.
    _folder: Option<TempDir>,
}

impl TestDatabase {
    /// On a file of its own.
    pub(crate) async fn sqlite() -> TestDatabase {
        let folder = tempfile::tempdir().unwrap();
        let url = format!("sqlite://{}", folder.path().join("test.db").display());
        TestDatabase::open(url, Some(folder)).await
    }

    /// In a schema of its own on the shared MariaDB.
    pub(crate) async fn mariadb() -> TestDatabase {
        TestDatabase::open(mariadb::new_schema().await, None).await
    }

    /// In a schema of a server of the test's own.
    pub(crate) async fn at(url: String) -> TestDatabase {
        TestDatabase::open(url, None).await
    }

    async fn open(url: String, folder: Option<TempDir>) -> TestDatabase {
        let database = Database::new(&DatabaseSettings::for_url(&url)).unwrap();
        database.migrate("test-epoch").await.unwrap();
        TestDatabase {
            database,
            url,
            _folder: folder,
        }
    }
}

/// A running service.
pub(crate) struct TestApp {
    pub(crate) app: App,
    /// `http://127.0.0.1:PORT`
    pub(crate) base: String,
    _folder: TempDir,
}

/// The merchant as WeChat Pay sees it; its key is made once, because making it is slow.
pub(crate) fn merchant() -> Merchant {
    static KEY: std::sync::LazyLock<Vec<u8>> =
        std::sync::LazyLock::new(|| SigningKey::public_key(SERIAL).unwrap().pkcs8_der().to_vec());
    Merchant::new(
        MCHID,
        API_V3_KEY,
        SigningKey::from_pkcs8(SERIAL, &KEY).unwrap(),
    )
    .unwrap()
}

/// Configuration of that merchant, its key files written into `folder`; `more` is appended.
pub(crate) fn configuration(folder: &Path, database_url: &str, more: &str) -> String {
    std::fs::write(folder.join("merchant.apiv3"), API_V3_KEY).unwrap();
    std::fs::write(folder.join("wechat.pem"), merchant().key.public_key_pem()).unwrap();
    format!(
        "[http]\nlisten = '127.0.0.1:0'\n[admin]\nlisten = '127.0.0.1:0'\n\
         [database]\nurl = '{database_url}'\n\
         [[merchants]]\nmchid = '{MCHID}'\napi_v3_key_files = ['merchant.apiv3']\n\
         [[merchants.verify_keys]]\nserial = '{SERIAL}'\nfile = 'wechat.pem'\n{more}"
    )
}

impl TestApp {
    /// Starts a service over this database with the system's clock.
    pub(crate) async fn start(database: &TestDatabase, more: &str) -> TestApp {
        TestApp::start_at(database, more, Arc::new(SystemClock)).await
    }

    /// The same with a clock of the test's own.
    pub(crate) async fn start_at(
        database: &TestDatabase,
        more: &str,
        clock: Arc<dyn Clock>,
    ) -> TestApp {
        let folder = tempfile::tempdir().unwrap();
        let text = configuration(folder.path(), &database.url, more);
        TestApp::from_text(&text, folder, clock).await
    }

    /// Starts a service from a whole configuration whose key files lie in `folder`.
    pub(crate) async fn from_text(text: &str, folder: TempDir, clock: Arc<dyn Clock>) -> TestApp {
        let settings =
            Settings::from_text(text, folder.path(), std::iter::empty(), clock.now()).unwrap();
        let database = Database::new(&settings.database).unwrap();
        let parts = Parts {
            database,
            clock,
            entropy: Arc::new(SystemEntropy),
            metrics: None,
        };
        let app = App::start(settings, parts).await.unwrap();
        let base = format!("http://{}", app.http_addr);
        TestApp {
            app,
            base,
            _folder: folder,
        }
    }

    /// Where notices go.
    pub(crate) fn notify_url(&self) -> String {
        format!("{}/notify/wechat/v3", self.base)
    }
}

/// A notice about one refund, as WeChat Pay writes it.
pub(crate) fn refund_notice(
    out_refund_no: &str,
    status: &str,
    refund_fen: i64,
    total_fen: i64,
) -> RefundNotice {
    let form = Form::Direct {
        mchid: MCHID.to_owned(),
    };
    let mut notice = RefundNotice::new(
        form,
        out_refund_no,
        format!("50{out_refund_no}"),
        status,
        refund_fen,
        total_fen,
    );
    notice.out_trade_no = format!("T-{out_refund_no}");
    notice.transaction_id = format!("42{out_refund_no}");
    notice
}

/// Seals and signs a notice now.
pub(crate) fn delivery(notice: &RefundNotice) -> platform::Delivery {
    let merchant = merchant();
    let now_ms = SystemClock.now().0;
    let mut seeded = Seeded::new(u64::try_from(now_ms).unwrap());
    let envelope: Envelope = notice.envelope(seeded.uuid(), now_ms, &mut seeded);
    let body = envelope.seal(merchant.api_v3_key());
    merchant.sign(body, now_ms / 1000, &seeded.text(32))
}

/// Sends one delivery; the time limit is far over WeChat Pay's five seconds, so that a late answer
/// is seen as late.
pub(crate) async fn send(url: &str, delivery: &platform::Delivery) -> Reply {
    Sender::new(1)
        .send(url, delivery, Duration::from_secs(20))
        .await
}

/// The shop writes an order and one refund of it in PROCESSING.
pub(crate) async fn shop_writes(
    database: &Database,
    out_refund_no: &str,
    refund_fen: i64,
    total_fen: i64,
) {
    shop_writes_order(database, &format!("T-{out_refund_no}"), total_fen).await;
    shop_writes_refund(database, out_refund_no, refund_fen, total_fen).await;
}

pub(crate) async fn shop_writes_order(database: &Database, out_trade_no: &str, total_fen: i64) {
    let order = NewOrder {
        mchid: MCHID.to_owned(),
        out_trade_no: out_trade_no.to_owned(),
        transaction_id: None,
        total_fen,
    };
    database
        .shop()
        .insert_orders(&[order], SystemClock.now())
        .await
        .unwrap();
}

pub(crate) async fn shop_writes_refund(
    database: &Database,
    out_refund_no: &str,
    refund_fen: i64,
    total_fen: i64,
) {
    let refund = NewRefund {
        mchid: MCHID.to_owned(),
        out_refund_no: out_refund_no.to_owned(),
        out_trade_no: format!("T-{out_refund_no}"),
        transaction_id: None,
        refund_fen,
        total_fen,
    };
    database
        .shop()
        .insert_refunds(&[refund], SystemClock.now())
        .await
        .unwrap();
}

/// The books, which must balance whenever anybody looks.
pub(crate) async fn books(database: &Database) -> Books {
    let books = database.shop().books().await.unwrap();
    assert_eq!(
        books.orders_off, 0,
        "refunded_fen differs from the ledger: {books:?}"
    );
    assert_eq!(
        books.ledger_total_fen, books.orders_refunded_total_fen,
        "{books:?}"
    );
    books
}

/// Waits until a condition holds; fails after 20 s, saying what was waited for.
pub(crate) async fn until<F: Future<Output = bool>>(what: &str, mut holds: impl FnMut() -> F) {
    let mut looks = tokio::time::interval(Duration::from_millis(5));
    let waited = tokio::time::timeout(Duration::from_secs(20), async {
        while !holds().await {
            looks.tick().await;
        }
    });
    assert!(waited.await.is_ok(), "waited in vain until {what}");
}

/// Waits until the ledger holds so many rows.
pub(crate) async fn until_booked(database: &Database, rows: i64) {
    until("the ledger holds the rows", || async {
        books(database).await.ledger_rows >= rows
    })
    .await;
}
