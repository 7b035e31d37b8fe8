//! Lifecycle: build the flows over the adapters, bind, run, and stop all in a written order.
//!
//! The order of stopping: no more connections; the requests under way are answered; the committers
//! empty their queues; the flushers empty theirs; the counts of repeats are written; the
//! connections to the database are closed. What the time given does not suffice for is durable
//! already and found again by the relay of the next start.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use metrics_exporter_prometheus::PrometheusHandle;
use tokio::net::TcpListener;
use tokio::task::{AbortHandle, JoinHandle};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::adapters::http::{self, Public, Readiness};
use crate::adapters::sql::Database;
use crate::commit::{CommitContext, Committers};
use crate::config::Settings;
use crate::core::types::UnixMs;
use crate::flush::{FlushContext, FlushTally, Flushers};
use crate::notice::Notices;
use crate::ports::{Clock, Entropy, Store};
use crate::relay::Relay;
use crate::repeats::Repeats;
use crate::telemetry::{self, names};

/// The pause between two upkeeps of the metrics.
const UPKEEP_EVERY: Duration = Duration::from_secs(1);
/// How long readiness waits for the database.
const READY_WAIT_MAX: Duration = Duration::from_secs(2);
/// How long an answer about readiness holds, so that asking costs the database little.
const READY_HOLDS: Duration = Duration::from_secs(1);

/// A running service.
pub struct App {
    /// Where deliveries are taken.
    pub http_addr: SocketAddr,
    /// Where metrics are given.
    pub admin_addr: SocketAddr,
    /// What the flushers have done.
    pub tally: Arc<FlushTally>,
    /// Ends when a loop of the service ended that should not have.
    pub broken: CancellationToken,
    draining: CancellationToken,
    relay_stop: CancellationToken,
    repeats_stop: CancellationToken,
    servers: Vec<Watched>,
    relay: Watched,
    committers: Vec<Watched>,
    flushers: Vec<Watched>,
    repeats: Watched,
    database: Database,
    grace: Duration,
}

/// What a service is made of, apart from its settings.
pub struct Parts {
    /// Where everything is kept.
    pub database: Database,
    /// The time of day.
    pub clock: Arc<dyn Clock>,
    /// Chance.
    pub entropy: Arc<dyn Entropy>,
    /// What renders the metrics; without it there is no admin listener.
    pub metrics: Option<PrometheusHandle>,
}

impl App {
    /// Builds and starts everything; deliveries are taken when this returns.
    ///
    /// Errors: a listener that cannot be bound.
    pub async fn start(settings: Settings, parts: Parts) -> anyhow::Result<App> {
        let Parts {
            database,
            clock,
            entropy,
            metrics,
        } = parts;
        let store = database.store();
        let broken = CancellationToken::new();
        let watch = Watch {
            broken: broken.clone(),
        };

        let tally = Arc::new(FlushTally::default());
        let (flushers, loops) = Flushers::new(FlushContext {
            store: Arc::clone(&store),
            clock: Arc::clone(&clock),
            entropy,
            tally: Arc::clone(&tally),
            limits: settings.flush,
        });
        let flusher_tasks = loops
            .into_iter()
            .map(|run| watch.spawn("flusher", run))
            .collect();

        let repeats = Arc::new(Repeats::default());
        let repeats_stop = CancellationToken::new();
        let run = Arc::clone(&repeats).run(Arc::clone(&store), repeats_stop.clone());
        let repeats_task = watch.spawn("repeats", run);

        let (committers, loops) = Committers::new(CommitContext {
            store: Arc::clone(&store),
            clock: Arc::clone(&clock),
            repeats: Arc::clone(&repeats),
            flushers: flushers.clone(),
            limits: settings.commit,
        });
        let committer_tasks = loops
            .into_iter()
            .map(|run| watch.spawn("committer", run))
            .collect();

        let relay_stop = CancellationToken::new();
        let relay = Relay {
            store: Arc::clone(&store),
            clock: Arc::clone(&clock),
            committers: committers.clone(),
            flushers: flushers.clone(),
            repeats: Arc::clone(&repeats),
            limits: settings.relay,
        };
        let relay_task = watch.spawn("relay", relay.run(relay_stop.clone()));

        let draining = CancellationToken::new();
        let upkeep = metrics.clone().map(|metrics| {
            let gauges = Gauges {
                committers: committers.clone(),
                flushers: flushers.clone(),
                database: database.clone(),
                clock: Arc::clone(&clock),
                certificates: settings.ring.certificates(),
            };
            watch.spawn("metrics", keep_up(metrics, gauges, draining.clone()))
        });
        let notices = Arc::new(Notices {
            ring: Arc::new(settings.ring),
            clock,
            committers,
            repeats,
            reply_deadline: settings.reply_deadline,
            draining: draining.clone(),
        });
        let public = http::public(Public {
            notices,
            body_bytes_max: settings.body_bytes_max,
            notify_paths: settings.notify_paths,
            readiness: readiness(store, broken.clone()),
        });
        let bind = async |key: &str, address: SocketAddr| {
            TcpListener::bind(address).await.with_context(|| {
                format!("{key}: cannot listen on {address}; free the port or choose another")
            })
        };
        let listener = bind("http.listen", settings.http_listen).await?;
        let http_addr = listener.local_addr()?;
        let mut servers =
            vec![watch.spawn("listener", http::serve(listener, public, draining.clone()))];
        let mut admin_addr = settings.admin_listen;
        servers.extend(upkeep);
        if let Some(metrics) = metrics {
            let listener = bind("admin.listen", settings.admin_listen).await?;
            admin_addr = listener.local_addr()?;
            servers.push(watch.spawn(
                "admin listener",
                http::serve(listener, http::admin(metrics), draining.clone()),
            ));
        }
        Ok(App {
            http_addr,
            admin_addr,
            tally,
            broken,
            draining,
            relay_stop,
            repeats_stop,
            servers,
            relay: relay_task,
            committers: committer_tasks,
            flushers: flusher_tasks,
            repeats: repeats_task,
            database,
            grace: settings.shutdown_grace,
        })
    }

    /// Stops in order, within `shutdown.grace_ms`. Gives whether everything was emptied in time.
    pub async fn stop(self) -> bool {
        let deadline = Instant::now() + self.grace;
        self.draining.cancel();
        self.relay_stop.cancel();
        let mut clean = true;
        // the last handle on the committers' queues is the listener's and the relay's, theirs on
        // the flushers' the committers': each stage ends by itself when the one before it has
        for stage in [
            self.servers,
            vec![self.relay],
            self.committers,
            self.flushers,
        ] {
            for task in stage {
                clean &= task.ends_by(deadline).await;
            }
        }
        self.repeats_stop.cancel();
        clean &= self.repeats.ends_by(deadline).await;
        if clean {
            self.database.close().await;
        }
        clean
    }
}

/// What is looked at now and then rather than told.
struct Gauges {
    committers: Committers,
    flushers: Flushers,
    database: Database,
    clock: Arc<dyn Clock>,
    /// Serials of platform certificates and when they end.
    certificates: Vec<(String, UnixMs)>,
}

impl Gauges {
    fn report(&self) {
        let queues = [
            ("commit", self.committers.waiting()),
            ("flush", self.flushers.waiting()),
        ];
        for (queue, (waiting, limit)) in queues {
            telemetry::gauge(
                metrics::gauge!(names::QUEUE_WAITING, "queue" => queue),
                waiting,
            );
            telemetry::gauge(metrics::gauge!(names::QUEUE_LIMIT, "queue" => queue), limit);
        }
        self.database.report();
        for (serial, ends) in &self.certificates {
            let days = (ends.0 - self.clock.now().0).div_euclid(86_400_000);
            let days = i32::try_from(days).unwrap_or(i32::MAX);
            metrics::gauge!(names::CERTIFICATE_DAYS, "serial" => serial.clone()).set(days);
        }
    }
}

/// Reports the gauges and folds what the histograms have gathered; without that they would keep
/// every value.
async fn keep_up(metrics: PrometheusHandle, gauges: Gauges, stop: CancellationToken) {
    gauges.report();
    while tokio::time::timeout(UPKEEP_EVERY, stop.cancelled())
        .await
        .is_err()
    {
        gauges.report();
        metrics.run_upkeep();
    }
}

/// Watches over loops: one that ends by a panic breaks the service, which then ends as a whole.
struct Watch {
    broken: CancellationToken,
}

/// A loop under watch.
struct Watched {
    run: AbortHandle,
    ended: JoinHandle<()>,
}

impl Watch {
    fn spawn(&self, name: &'static str, run: impl Future<Output = ()> + Send + 'static) -> Watched {
        let broken = self.broken.clone();
        let task = tokio::spawn(run);
        let run = task.abort_handle();
        let ended = tokio::spawn(async move {
            if task.await.is_err_and(|error| error.is_panic()) {
                tracing::error!(task = name, "a task panicked; shutting down");
                broken.cancel();
            }
        });
        Watched { run, ended }
    }
}

impl Watched {
    /// Waits for the loop to end by itself; cuts it at the deadline. Gives whether it ended.
    async fn ends_by(mut self, deadline: Instant) -> bool {
        let ended = tokio::time::timeout_at(deadline, &mut self.ended)
            .await
            .is_ok();
        self.run.abort();
        ended
    }
}

/// Asks the store at most once a second, and not at all when a loop is gone.
fn readiness(store: Arc<dyn Store>, broken: CancellationToken) -> Readiness {
    type Known = Option<(Instant, Result<(), String>)>;
    let known: Arc<tokio::sync::Mutex<Known>> = Arc::default();
    Arc::new(move || {
        let (store, broken, known) = (Arc::clone(&store), broken.clone(), Arc::clone(&known));
        Box::pin(async move {
            if broken.is_cancelled() {
                return Err("a task has ended".to_owned());
            }
            let mut known = known.lock().await;
            if let Some((at, answer)) = &*known
                && at.elapsed() < READY_HOLDS
            {
                return answer.clone();
            }
            // in a task of its own: nobody who hangs up may cut the transaction
            let asked = tokio::spawn(async move {
                store.ready().await.map_err(|error| error.kind().to_owned())
            });
            let answer = match tokio::time::timeout(READY_WAIT_MAX, asked).await {
                Ok(Ok(Ok(()))) => Ok(()),
                Ok(Ok(Err(kind))) => Err(format!("database: {kind}")),
                Ok(Err(_)) => Err("database: no answer".to_owned()),
                Err(_) => Err("database: no answer in time".to_owned()),
            };
            *known = Some((Instant::now(), answer.clone()));
            answer
        })
    })
}
