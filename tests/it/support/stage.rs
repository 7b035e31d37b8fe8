//! A service with everything around it that a test looks at: its database, a clock that stands
//! still unless it is advanced, and WeChat Pay. And facts as the committers take them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use platform::{Delivery, RefundNotice, Reply, Seeded, Sender};
use refund_batcher::adapters::clock::SystemClock;
use refund_batcher::core::decide::DecideLimits;
use refund_batcher::core::fact::{Fact, Provider, Source, Subject};
use refund_batcher::core::notice::{Content, Intake, Origin, Raw as RawDelivery};
use refund_batcher::core::plan::PlanLimits;
use refund_batcher::core::refund::RefundStatus;
use refund_batcher::core::types::{Currency, Fen, Mchid, OutRefundNo, OutTradeNo, UnixMs};
use refund_batcher::ports::Clock;

use super::raw::Raw;
use super::{MCHID, TestApp, TestClock, TestDatabase, books, merchant, until};

/// Deciding with the numbers of the default configuration.
pub(crate) const DECIDE: DecideLimits = DecideLimits {
    grace_ms: 10_000,
    orphan_after_ms: 86_400_000,
};
/// Planning a first attempt with the numbers of the default configuration.
pub(crate) const PLAN: PlanLimits = PlanLimits {
    attempts_max: 8,
    taken: false,
    jitter: 0.5,
};

/// A running service, and how to look at it.
pub(crate) struct Stage {
    pub(crate) db: TestDatabase,
    pub(crate) app: TestApp,
    pub(crate) clock: Arc<TestClock>,
    raw: tokio::sync::Mutex<Raw>,
    sender: Sender,
}

impl Stage {
    /// A service over this database, its relay polling often.
    pub(crate) async fn over(db: TestDatabase) -> Stage {
        Stage::with(db, "").await
    }

    /// The same with more configuration, which names no `[relay]`.
    pub(crate) async fn with(db: TestDatabase, more: &str) -> Stage {
        let clock = TestClock::at(SystemClock.now().0);
        let app = TestApp::start_at(&db, &Stage::more(more), clock.clone()).await;
        let raw = tokio::sync::Mutex::new(Raw::open(&db.url).await);
        Stage {
            db,
            app,
            clock,
            raw,
            sender: Sender::new(64),
        }
    }

    fn more(more: &str) -> String {
        format!("[relay]\npoll_ms = 20\n{more}")
    }

    /// A second process on the same database, under the same clock.
    pub(crate) async fn another_app(&self, more: &str) -> TestApp {
        TestApp::start_at(&self.db, &Stage::more(more), self.clock.clone()).await
    }

    /// Seals a notice in an envelope of its own and signs it by the stage's clock.
    pub(crate) fn seal(&self, notice: &RefundNotice) -> Delivery {
        sealed(notice, self.clock.now().0)
    }

    /// Sends a notice in an envelope of its own; gives the status of the answer.
    pub(crate) async fn deliver(&self, notice: &RefundNotice) -> u16 {
        self.send(&self.app.notify_url(), &self.seal(notice))
            .await
            .status
            .expect("an answer")
    }

    /// Sends a delivery to this address.
    pub(crate) async fn send(&self, url: &str, delivery: &Delivery) -> Reply {
        self.sender
            .send(url, delivery, Duration::from_secs(20))
            .await
    }

    /// Sends all at once, each to the address beside it; gives the statuses in their order.
    pub(crate) async fn send_together(&self, deliveries: Vec<(String, Delivery)>) -> Vec<u16> {
        let tasks: Vec<_> = deliveries
            .into_iter()
            .map(|(url, delivery)| {
                let sender = self.sender.clone();
                tokio::spawn(
                    async move { sender.send(&url, &delivery, Duration::from_secs(20)).await },
                )
            })
            .collect();
        let mut statuses = Vec::new();
        for task in tasks {
            statuses.push(task.await.unwrap().status.expect("an answer"));
        }
        statuses
    }

    /// The same for notices, all to this stage's service, and each must be acknowledged.
    pub(crate) async fn deliver_together(&self, notices: &[RefundNotice]) {
        let deliveries = notices
            .iter()
            .map(|notice| (self.app.notify_url(), self.seal(notice)))
            .collect();
        let statuses = self.send_together(deliveries).await;
        assert!(statuses.iter().all(|status| *status == 204), "{statuses:?}");
    }

    pub(crate) async fn run(&self, text: &str) -> u64 {
        self.raw.lock().await.run(text).await
    }

    pub(crate) async fn int(&self, text: &str) -> i64 {
        self.raw.lock().await.int(text).await
    }

    pub(crate) async fn lines(&self, text: &str) -> Vec<String> {
        self.raw.lock().await.lines(text).await
    }

    /// State and reason of each notice of this refund with this status.
    pub(crate) async fn notices(&self, out_refund_no: &str, status: &str) -> Vec<String> {
        let text = format!(
            "SELECT state, reason FROM notice WHERE out_refund_no = '{out_refund_no}' AND status = '{status}' ORDER BY id"
        );
        self.lines(&text).await
    }

    /// That there is one notice of this refund with this status, and how it stands: `state reason`.
    pub(crate) async fn assert_notice(&self, out_refund_no: &str, status: &str, expected: &str) {
        assert_eq!(
            self.notices(out_refund_no, status).await,
            [expected],
            "{out_refund_no} {status}"
        );
    }

    /// Waits until the notice stands so.
    pub(crate) async fn until_notice(&self, out_refund_no: &str, status: &str, expected: &str) {
        let what = format!("the {status} notice of {out_refund_no} is {expected}");
        until(&what, || async {
            self.notices(out_refund_no, status).await == [expected]
        })
        .await;
    }

    /// The same, with 200 ms of the stage's clock passing at each look.
    pub(crate) async fn until_notice_in_time(
        &self,
        out_refund_no: &str,
        status: &str,
        expected: &str,
    ) {
        let what = format!("the {status} notice of {out_refund_no} becomes {expected}");
        until(&what, || async {
            self.clock.advance(200);
            self.notices(out_refund_no, status).await == [expected]
        })
        .await;
    }

    /// Waits until the notices of this refund have this many deliveries, and checks that no more come.
    pub(crate) async fn until_deliveries(&self, out_refund_no: &str, deliveries: i64) {
        let text = format!(
            "SELECT CAST(SUM(deliveries) AS CHAR) FROM notice WHERE out_refund_no = '{out_refund_no}'"
        );
        until("deliveries are counted", || async {
            self.int(&text).await >= deliveries
        })
        .await;
        assert_eq!(self.int(&text).await, deliveries);
    }

    pub(crate) async fn refund_status(&self, out_refund_no: &str) -> String {
        let text =
            format!("SELECT status FROM refund_order WHERE out_refund_no = '{out_refund_no}'");
        self.lines(&text).await.join(", ")
    }

    /// An order's `refunded_fen refund_status`.
    pub(crate) async fn order(&self, out_trade_no: &str) -> String {
        let text = format!(
            "SELECT refunded_fen, refund_status FROM orders WHERE out_trade_no = '{out_trade_no}'"
        );
        self.lines(&text).await.join(", ")
    }

    /// The money of each ledger row of this refund.
    pub(crate) async fn ledger(&self, out_refund_no: &str) -> Vec<String> {
        let text =
            format!("SELECT refund_fen FROM refund_ledger WHERE out_refund_no = '{out_refund_no}'");
        self.lines(&text).await
    }

    /// That this refund, alone on its order, is in SUCCESS, done and booked once, in all places alike.
    pub(crate) async fn assert_booked_once(&self, out_refund_no: &str, refund_fen: i64) {
        self.assert_notice(out_refund_no, "SUCCESS", "done -").await;
        assert_eq!(self.refund_status(out_refund_no).await, "SUCCESS");
        assert_eq!(self.ledger(out_refund_no).await, [refund_fen.to_string()]);
        let order = self.order(&format!("T-{out_refund_no}")).await;
        assert_eq!(
            order.split(' ').next(),
            Some(refund_fen.to_string().as_str())
        );
        books(&self.db.database).await;
    }
}

/// A notice in an envelope of its own, signed at this moment.
pub(crate) fn sealed(notice: &RefundNotice, now_ms: i64) -> Delivery {
    static COUNT: AtomicU64 = AtomicU64::new(1);
    let mut seeded = Seeded::new(COUNT.fetch_add(1, Ordering::Relaxed));
    let merchant = merchant();
    let body = notice
        .envelope(seeded.uuid(), now_ms, &mut seeded)
        .seal(merchant.api_v3_key());
    merchant.sign(body, now_ms / 1000, &seeded.text(32))
}

/// The fact that `refund_notice` with the same arguments reports, but for the ids it need not name.
pub(crate) fn fact(
    out_refund_no: &str,
    status: RefundStatus,
    refund_fen: i64,
    total_fen: i64,
) -> Fact {
    Fact {
        provider: Provider::Wechat,
        subject: Subject::Refund,
        mchid: Mchid::parse(MCHID).unwrap(),
        out_refund_no: OutRefundNo::parse(out_refund_no).unwrap(),
        out_trade_no: OutTradeNo::parse(&format!("T-{out_refund_no}")).unwrap(),
        refund_id: None,
        transaction_id: None,
        status,
        refund_fen: Fen(refund_fen),
        payer_refund_fen: None,
        total_fen: Fen(total_fen),
        currency: Currency::cny(),
        success_at_ms: None,
    }
}

/// A delivery of this fact, as the handler gives it to a committer.
pub(crate) fn intake(fact: Fact, now: UnixMs) -> Intake {
    Intake {
        digest: fact.digest(),
        mchid: fact.mchid.clone(),
        unopened_as: Vec::new(),
        envelope_id: format!("envelope of {}", fact.out_refund_no),
        source: Source::NotifyV3,
        content: Content::Fact(fact),
        origin: Origin::Delivery(Arc::new(RawDelivery {
            headers: b"h: 1\n".to_vec(),
            body: b"{}".to_vec(),
        })),
        received_at: now,
        event_differs: false,
        park_if_locked: false,
        skip_refund: false,
    }
}
