//! Campaigns: many deliveries at once, sent again until they are acknowledged.
//!
//! A [`Campaign`] holds the rules, a [`Report`] one [`Attempt`] per POST. The loop is closed: a fixed number of
//! deliveries is under way, and the next one starts when one ends. A delivery that is not acknowledged waits on the
//! platform's ladder, then goes before fresh ones, signed anew. Judging the numbers is left to the caller.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::ops::Range;
use std::panic;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use crate::delivery::Delivery;
use crate::seeded::Seeded;
use crate::sender::{Failure, Sender, acknowledges};

/// The platform's ladder: how long after each failure the notice is sent again, in seconds. 24 h 4 min in all.
pub const LADDER_S: [u64; 15] = [
    15, 15, 30, 180, 600, 1_200, 1_800, 1_800, 1_800, 3_600, 10_800, 10_800, 10_800, 21_600, 21_600,
];

/// How a list of deliveries is sent.
#[derive(Clone, Debug)]
pub struct Campaign {
    /// The full address, like `http://127.0.0.1:8080/notify/wechat/refund`.
    pub url: String,
    /// How many deliveries are under way at once; 0 counts as 1.
    pub concurrency: usize,
    /// A reply that takes longer is a failure. The platform waits 5 s, the default.
    pub timeout: Duration,
    /// How much faster the ladder runs than in life; 1 is real time, the default, and 0 counts as 1.
    pub clock_divisor: u32,
    /// How many times one delivery is sent again: 15 at most, the default.
    pub resends_max: usize,
    /// Where the nonces of resends start from.
    pub seed: u64,
}

/// What a running campaign has done so far. The numbers only grow.
#[derive(Debug, Default)]
pub struct Progress {
    /// POSTs that ended, resends among them.
    pub attempts: AtomicU64,
    /// POSTs that ended and were resends.
    pub resends: AtomicU64,
    /// Deliveries that were acknowledged.
    pub acknowledged: AtomicU64,
    /// Deliveries that are done with: acknowledged, given up, or sent once.
    pub finished: AtomicU64,
}

/// One POST.
#[derive(Clone, Copy, Debug)]
pub struct Attempt {
    /// Which delivery, as its place in the list.
    pub index: usize,
    /// 0 for the first one, then 1 to 15.
    pub resend: usize,
    /// The status number, or why there is none.
    pub status: Result<u16, Failure>,
    /// When it started, from the start of the campaign.
    pub started: Duration,
    /// From just before sending until the complete reply was read, or until the failure.
    pub took: Duration,
}

/// What came of a campaign.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Every POST, in the order they ended.
    pub attempts: Vec<Attempt>,
    /// Deliveries given up without an acknowledgement, as places in the list, ascending.
    pub unacknowledged: Vec<usize>,
    /// Deliveries that were meant to be refused and got an acknowledgement, ascending.
    pub wrongly_acknowledged: Vec<usize>,
    /// From the first POST to the end of the last.
    pub took: Duration,
}

impl Report {
    /// How many POSTs got each status.
    pub fn statuses(&self) -> BTreeMap<u16, u64> {
        count(self.attempts.iter().filter_map(|a| a.status.ok()))
    }

    /// How many POSTs got none, by reason.
    pub fn failures(&self) -> BTreeMap<Failure, u64> {
        count(self.attempts.iter().filter_map(|a| a.status.err()))
    }

    /// How many POSTs were resends.
    pub fn resends(&self) -> usize {
        self.attempts.iter().filter(|a| a.resend > 0).count()
    }

    /// The times of those POSTs that `wanted` picks, in the order they ended. Failures have a time as well.
    pub fn took_of(&self, wanted: impl Fn(&Attempt) -> bool) -> Vec<Duration> {
        let picked = self.attempts.iter().filter(|a| wanted(a));
        picked.map(|a| a.took).collect()
    }
}

/// Times, summed up by nearest rank: each one was measured, none is interpolated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Percentiles {
    /// How many times there were.
    pub count: usize,
    /// Half took no longer.
    pub p50: Duration,
    /// 99 of 100 took no longer.
    pub p99: Duration,
    /// 999 of 1000 took no longer.
    pub p999: Duration,
    /// None took longer.
    pub max: Duration,
}

impl Percentiles {
    /// Sums up `times`, in any order; none when there are none.
    pub fn of(mut times: Vec<Duration>) -> Option<Self> {
        times.sort_unstable();
        let max = *times.last()?;
        let rank = |per_mille: usize| times[(times.len() * per_mille).div_ceil(1_000) - 1];
        Some(Self {
            count: times.len(),
            p50: rank(500),
            p99: rank(990),
            p999: rank(999),
            max,
        })
    }
}

impl Campaign {
    /// The rules of life for `url`: 5 s, the whole ladder in real time.
    pub fn new(url: impl Into<String>, concurrency: usize) -> Self {
        Self {
            url: url.into(),
            concurrency,
            timeout: Duration::from_secs(5),
            clock_divisor: 1,
            resends_max: LADDER_S.len(),
            seed: 0,
        }
    }

    /// Sends every delivery until it is acknowledged, given up, or was sent once; dropping the future stops it.
    ///
    /// Units: `now_unix` gives Unix seconds, and is asked whenever a resend is signed.   Errors: none; a receiver that
    /// fails is what the report is about.
    pub async fn run(
        &self,
        sender: &Sender,
        deliveries: Vec<Delivery>,
        now_unix: impl Fn() -> i64 + Send + Sync + 'static,
        progress: &Progress,
    ) -> Report {
        let started = Instant::now();
        let shared = Arc::new(Shared {
            campaign: self.clone(),
            sender: sender.clone(),
            deliveries,
            now_unix: Box::new(now_unix),
            started,
        });
        let mut queue = Queue {
            fresh: 0..shared.deliveries.len(),
            waiting: BinaryHeap::new(),
        };
        let mut running = JoinSet::new();
        let mut report = Report::default();
        let places = self.concurrency.max(1);
        loop {
            while running.len() < places
                && let Some((index, resend)) = queue.take(Instant::now())
            {
                running.spawn(attempt(Arc::clone(&shared), index, resend));
            }
            // With every place taken only an ending can change anything, so no due time is waited for.
            let wake_at = queue.next_due().filter(|_| running.len() < places);
            tokio::select! {
                Some(ended) = running.join_next() => {
                    let ended = ended.unwrap_or_else(|e| panic::resume_unwind(e.into_panic()));
                    let resent = shared.deliveries[ended.index].is_resent();
                    if let Some(delay) = self.settle(ended, resent, &mut report, progress) {
                        let next = (Instant::now() + delay, ended.index, ended.resend + 1);
                        queue.waiting.push(Reverse(next));
                    }
                }
                () = sleep_until(wake_at.unwrap_or(started)), if wake_at.is_some() => {}
                else => break,
            }
        }
        report.unacknowledged.sort_unstable();
        report.wrongly_acknowledged.sort_unstable();
        report.took = started.elapsed();
        report
    }

    /// Books one attempt; returns how long to wait before the next one, or none when the delivery is done with.
    fn settle(
        &self,
        ended: Attempt,
        resent: bool,
        report: &mut Report,
        progress: &Progress,
    ) -> Option<Duration> {
        report.attempts.push(ended);
        progress.attempts.fetch_add(1, Ordering::Relaxed);
        if ended.resend > 0 {
            progress.resends.fetch_add(1, Ordering::Relaxed);
        }
        match (acknowledges(ended.status), resent) {
            (true, true) => {
                progress.acknowledged.fetch_add(1, Ordering::Relaxed);
            }
            (true, false) => report.wrongly_acknowledged.push(ended.index),
            (false, true) => {
                let mut steps_s = LADDER_S.iter().take(self.resends_max);
                if let Some(&step_s) = steps_s.nth(ended.resend) {
                    return Some(Duration::from_secs(step_s) / self.clock_divisor.max(1));
                }
                report.unacknowledged.push(ended.index);
            }
            (false, false) => {}
        }
        progress.finished.fetch_add(1, Ordering::Relaxed);
        None
    }
}

/// What is still to be sent, as places in the list.
struct Queue {
    /// Not sent yet.
    fresh: Range<usize>,
    /// When a resend is due, of which delivery, and which resend it is; the earliest on top.
    waiting: BinaryHeap<Reverse<(Instant, usize, usize)>>,
}

impl Queue {
    /// The next one to send now, and which resend it is: what is due goes before what is fresh.
    fn take(&mut self, now: Instant) -> Option<(usize, usize)> {
        if self.next_due().is_some_and(|due| due <= now) {
            let Reverse((_, index, resend)) = self.waiting.pop()?;
            return Some((index, resend));
        }
        self.fresh.next().map(|index| (index, 0))
    }

    fn next_due(&self) -> Option<Instant> {
        self.waiting.peek().map(|Reverse((due, ..))| *due)
    }
}

/// What all attempts of a running campaign need.
struct Shared {
    campaign: Campaign,
    sender: Sender,
    deliveries: Vec<Delivery>,
    now_unix: Box<dyn Fn() -> i64 + Send + Sync>,
    started: Instant,
}

/// Sends one delivery once; signs it now unless it is the first time.
async fn attempt(shared: Arc<Shared>, index: usize, resend: usize) -> Attempt {
    let campaign = &shared.campaign;
    let first = &shared.deliveries[index];
    let again = (resend > 0)
        .then(|| {
            let stream = ((index as u64) << 4) | resend as u64;
            // The seed is turned over, so that no nonce of the first round comes again under an equal seed.
            let nonce = Seeded::stream(!campaign.seed, stream).text(32);
            first.signed_again((shared.now_unix)(), &nonce)
        })
        .flatten();
    let started = shared.started.elapsed();
    let delivery = again.as_ref().unwrap_or(first);
    let reply = shared
        .sender
        .send(&campaign.url, delivery, campaign.timeout)
        .await;
    Attempt {
        index,
        resend,
        status: reply.status,
        started,
        took: reply.took,
    }
}

fn count<K: Ord>(keys: impl Iterator<Item = K>) -> BTreeMap<K, u64> {
    let mut counts = BTreeMap::new();
    for key in keys {
        *counts.entry(key).or_default() += 1;
    }
    counts
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::convert::Infallible;
    use std::sync::Mutex;
    use std::sync::atomic::AtomicI64;

    use http_body_util::{BodyExt as _, Full};
    use hyper::body::{Bytes, Incoming};
    use hyper::server::conn::http1;
    use hyper::service::service_fn;
    use hyper::{Request, Response};
    use hyper_util::rt::TokioIo;
    use tokio::net::TcpListener;

    use super::*;
    use crate::delivery::sign_all;
    use crate::keys::Merchant;
    use crate::vector::{API_V3_KEY, signing_key, verify};

    const NOW_UNIX: i64 = 1_789_000_000;

    /// What a receiver got: timestamp, nonce, signature, body.
    type Seen = Arc<Mutex<Vec<(String, String, String, String)>>>;

    /// A receiver on a free port that answers the n-th time it meets a body with `reply(body, n)`, n from 0.
    async fn receiver(reply: fn(&str, usize) -> u16) -> (String, Seen) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/notify", listener.local_addr().unwrap());
        let seen = Seen::default();
        let seen_by_server = Arc::clone(&seen);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let seen = Arc::clone(&seen_by_server);
                let service = service_fn(move |request| answer(request, Arc::clone(&seen), reply));
                let io = TokioIo::new(stream);
                tokio::spawn(http1::Builder::new().serve_connection(io, service));
            }
        });
        (url, seen)
    }

    async fn answer(
        request: Request<Incoming>,
        seen: Seen,
        reply: fn(&str, usize) -> u16,
    ) -> Result<Response<Full<Bytes>>, Infallible> {
        let (head, body) = request.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        let body = String::from_utf8(body.to_vec()).unwrap();
        let text = |name: &str| head.headers[name].to_str().unwrap().to_owned();
        let mut seen = seen.lock().unwrap();
        let met = seen.iter().filter(|(.., b)| *b == body).count();
        let status = reply(&body, met);
        seen.push((
            text("wechatpay-timestamp"),
            text("wechatpay-nonce"),
            text("wechatpay-signature"),
            body,
        ));
        let response = Response::builder().status(status);
        Ok(response.body(Full::default()).unwrap())
    }

    fn merchant() -> Merchant {
        Merchant::new("1900000109", API_V3_KEY, signing_key()).unwrap()
    }

    fn deliveries(merchant: &Merchant, count: usize) -> Vec<Delivery> {
        let bodies = (0..count).map(|n| Bytes::from(format!("notice {n}")));
        sign_all(merchant, bodies.collect(), NOW_UNIX, 1)
    }

    /// The whole ladder in 87 ms.
    fn campaign(url: String) -> Campaign {
        Campaign {
            clock_divisor: 1_000_000,
            seed: 1,
            ..Campaign::new(url, 4)
        }
    }

    #[tokio::test]
    async fn it_sends_again_freshly_signed_until_acknowledged() {
        let merchant = merchant();
        let (url, seen) = receiver(|_, met| if met < 2 { 503 } else { 204 }).await;
        let clock = AtomicI64::new(NOW_UNIX);
        let progress = Arc::new(Progress::default());
        let shown = Arc::clone(&progress);
        let now = move || clock.fetch_add(1, Ordering::Relaxed) + 1;
        let list = deliveries(&merchant, 20);
        // In a task of its own, as beside other work.
        let run = async move { campaign(url).run(&Sender::new(4), list, now, &shown).await };
        let report = tokio::spawn(run).await.unwrap();

        assert_eq!(report.statuses(), BTreeMap::from([(204, 20), (503, 40)]));
        assert_eq!(report.failures(), BTreeMap::new());
        assert_eq!(report.resends(), 40);
        assert!(report.unacknowledged.is_empty());
        assert_eq!(report.took_of(|a| a.status == Ok(204)).len(), 20);
        assert_eq!(progress.attempts.load(Ordering::Relaxed), 60);
        assert_eq!(progress.resends.load(Ordering::Relaxed), 40);
        assert_eq!(progress.acknowledged.load(Ordering::Relaxed), 20);
        assert_eq!(progress.finished.load(Ordering::Relaxed), 20);

        let seen = seen.lock().unwrap();
        let mut nonces: Vec<&str> = seen.iter().map(|(_, nonce, ..)| nonce.as_str()).collect();
        nonces.sort_unstable();
        nonces.dedup();
        assert_eq!(nonces.len(), 60, "a nonce came twice");
        let mut stamps: Vec<i64> = seen.iter().map(|(t, ..)| t.parse().unwrap()).collect();
        stamps.sort_unstable();
        let fresh = (1..=40).map(|second| NOW_UNIX + second);
        let expected: Vec<i64> = [NOW_UNIX; 20].into_iter().chain(fresh).collect();
        assert_eq!(stamps, expected);
        for (timestamp, nonce, signature, body) in seen.iter() {
            let text = format!("{timestamp}\n{nonce}\n{body}\n");
            assert!(verify(
                merchant.key.public_key_pem(),
                text.as_bytes(),
                signature
            ));
        }
    }

    #[tokio::test]
    async fn it_gives_up_after_fifteen_resends() {
        let (url, _) = receiver(|body, _| if body == "notice 1" { 302 } else { 200 }).await;
        let report = campaign(url)
            .run(
                &Sender::new(4),
                deliveries(&merchant(), 3),
                || NOW_UNIX,
                &Progress::default(),
            )
            .await;
        assert_eq!(report.unacknowledged, [1]);
        assert_eq!(report.statuses(), BTreeMap::from([(200, 2), (302, 16)]));
        let whole_ladder = Duration::from_secs(LADDER_S.iter().sum()) / 1_000_000;
        assert!(report.took >= whole_ladder, "{:?}", report.took);
    }

    #[tokio::test]
    async fn what_is_meant_to_be_refused_is_sent_once() {
        let merchant = merchant();
        let (url, seen) = receiver(|body, _| if body == "wrong" { 200 } else { 401 }).await;
        let deliveries = vec![
            merchant.probe("probe", NOW_UNIX, "n1"),
            merchant.sign("genuine 1", NOW_UNIX, "n2").tampered(),
            merchant.probe("wrong", NOW_UNIX, "n3"),
        ];
        let progress = Progress::default();
        let report = campaign(url)
            .run(&Sender::new(1), deliveries, || NOW_UNIX, &progress)
            .await;
        assert_eq!(report.wrongly_acknowledged, [2]);
        assert!(report.unacknowledged.is_empty());
        assert_eq!(report.statuses(), BTreeMap::from([(200, 1), (401, 2)]));
        assert_eq!(seen.lock().unwrap().len(), 3);
        assert_eq!(progress.acknowledged.load(Ordering::Relaxed), 0);
        assert_eq!(progress.finished.load(Ordering::Relaxed), 3);
    }

    #[tokio::test]
    async fn nobody_listening_is_no_panic_and_nothing_to_send_ends_at_once() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        drop(listener);
        let mut campaign = campaign(url);
        campaign.resends_max = 2;
        let sender = Sender::new(1);
        let report = campaign
            .run(
                &sender,
                deliveries(&merchant(), 1),
                || NOW_UNIX,
                &Progress::default(),
            )
            .await;
        assert_eq!(report.failures(), BTreeMap::from([(Failure::Connect, 3)]));
        assert_eq!(report.unacknowledged, [0]);
        let report = campaign
            .run(&sender, Vec::new(), || NOW_UNIX, &Progress::default())
            .await;
        assert!(report.attempts.is_empty());
    }

    #[test]
    fn percentiles_are_measured_times() {
        let ms = Duration::from_millis;
        assert_eq!(Percentiles::of(Vec::new()), None);
        let one = Percentiles::of(vec![ms(7)]).unwrap();
        assert_eq!((one.p50, one.p999, one.max), (ms(7), ms(7), ms(7)));
        let hundred = Percentiles::of((1..=100).rev().map(ms).collect()).unwrap();
        assert_eq!((hundred.count, hundred.p50), (100, ms(50)));
        assert_eq!(
            (hundred.p99, hundred.p999, hundred.max),
            (ms(99), ms(100), ms(100))
        );
    }

    #[test]
    fn the_ladder_is_a_day_and_four_minutes() {
        assert_eq!(LADDER_S.iter().sum::<u64>(), 24 * 3_600 + 4 * 60);
    }
}
