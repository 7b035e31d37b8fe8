//! The two listeners: routes, raw bodies, health. Decides nothing.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request, State};
use axum::http::{HeaderValue, Response, StatusCode, header};
use axum::routing::{get, post};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use metrics_exporter_prometheus::PrometheusHandle;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tower_http::catch_panic::CatchPanicLayer;

use crate::core::reply::{Answer, Reply};
use crate::notice::{Delivery, Notices};

/// How long a connection may take to send a request head.
const HEAD_MAX: Duration = Duration::from_secs(5);
/// Bytes that a connection buffers at most; a request head must fit in it.
const BUFFER_BYTES_MAX: usize = 32 * 1024;
/// Connections at most; further ones wait to be accepted.
const CONNECTIONS_MAX: usize = 4096;

/// Whether a notice could be made durable now, and the loops turn.
pub type Readiness = Arc<
    dyn Fn() -> std::pin::Pin<Box<dyn Future<Output = Result<(), String>> + Send>> + Send + Sync,
>;

/// What the public routes need.
#[derive(Clone)]
pub struct Public {
    /// Takes deliveries.
    pub notices: Arc<Notices>,
    /// Bytes in a body at most.
    pub body_bytes_max: usize,
    /// More paths for notices.
    pub notify_paths: Vec<String>,
    /// Answers `GET /readyz`.
    pub readiness: Readiness,
}

/// The public routes.
pub fn public(public: Public) -> Router {
    let mut router = Router::new()
        .route("/notify/wechat/v3", post(any_merchant))
        .route("/notify/wechat/v3/{mchid}", post(one_merchant))
        .route("/healthz", get(|| async { "ok" }))
        .route("/readyz", get(ready));
    for path in &public.notify_paths {
        router = router.route(path, post(any_merchant));
    }
    router
        .layer(CatchPanicLayer::new())
        .with_state(Arc::new(public))
}

/// The admin routes.
pub fn admin(metrics: PrometheusHandle) -> Router {
    let render = move || {
        let metrics = metrics.clone();
        async move {
            (
                [(header::CONTENT_TYPE, "text/plain; version=0.0.4")],
                metrics.render(),
            )
        }
    };
    Router::new().route("/metrics", get(render))
}

async fn any_merchant(State(public): State<Arc<Public>>, request: Request) -> Response<Body> {
    notify(&public, None, request).await
}

async fn one_merchant(
    State(public): State<Arc<Public>>,
    mchid: Result<Path<String>, PathRejection>,
    request: Request,
) -> Response<Body> {
    // a path that is not UTF-8 names no merchant
    let mchid = mchid.map_or_else(|_| String::new(), |Path(mchid)| mchid);
    notify(&public, Some(&mchid), request).await
}

async fn notify(public: &Public, bound: Option<&str>, request: Request) -> Response<Body> {
    let arrived = Instant::now();
    let (head, body) = request.into_parts();
    let deadline = arrived + public.notices.reply_deadline;
    let body = read_body(body, &head.headers, public.body_bytes_max, deadline).await;
    let delivery = Delivery {
        headers: head
            .headers
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_bytes()))
            .collect(),
        body: body.as_deref().map_err(|answer| *answer),
        bound,
        arrived,
    };
    let reply = public.notices.handle(delivery).await;
    let unread = body.is_err();
    respond(reply, unread || public.notices.draining.is_cancelled())
}

/// The exact bytes, unless they are too many or too slow.
async fn read_body(
    body: Body,
    headers: &axum::http::HeaderMap,
    bytes_max: usize,
    deadline: Instant,
) -> Result<Bytes, Answer> {
    let announced = headers
        .get(header::CONTENT_LENGTH)
        .and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    if announced.is_some_and(|bytes| usize::try_from(bytes).map_or(true, |bytes| bytes > bytes_max))
    {
        return Err(Answer::TooLarge);
    }
    match tokio::time::timeout_at(deadline, Limited::new(body, bytes_max).collect()).await {
        Ok(Ok(collected)) => Ok(collected.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => Err(Answer::TooLarge),
        // a body that broke off is answered to nobody
        Ok(Err(_)) | Err(_) => Err(Answer::Late),
    }
}

fn respond(reply: Reply, close: bool) -> Response<Body> {
    let mut response = Response::new(Body::from(reply.body));
    *response.status_mut() =
        StatusCode::from_u16(reply.status).unwrap_or(StatusCode::SERVICE_UNAVAILABLE);
    let headers = response.headers_mut();
    if response_has_body(reply.status) {
        headers.insert(
            header::CONTENT_TYPE,
            HeaderValue::from_static("application/json"),
        );
    }
    if close {
        headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

fn response_has_body(status: u16) -> bool {
    status != 204
}

async fn ready(State(public): State<Arc<Public>>) -> (StatusCode, String) {
    if public.notices.draining.is_cancelled() {
        return (
            StatusCode::SERVICE_UNAVAILABLE,
            "shutting down\n".to_owned(),
        );
    }
    match (public.readiness)().await {
        Ok(()) => (StatusCode::OK, "ready\n".to_owned()),
        Err(why) => (StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")),
    }
}

/// Serves until `stop`; then takes no more connections, closes idle ones, and ends when the
/// requests under way are answered.
pub async fn serve(listener: TcpListener, router: Router, stop: CancellationToken) {
    let mut builder = hyper::server::conn::http1::Builder::new();
    // without a timer, the time limit on the head would be none
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_MAX)
        .max_buf_size(BUFFER_BYTES_MAX);
    let graceful = GracefulShutdown::new();
    let connections = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let place = tokio::select! {
            () = stop.cancelled() => break,
            place = Arc::clone(&connections).acquire_owned() => place,
        };
        let Ok(place) = place else { break };
        let accepted: Result<(_, SocketAddr), _> = tokio::select! {
            () = stop.cancelled() => break,
            accepted = listener.accept() => accepted,
        };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                // out of file descriptors, most likely: wait until some are closed
                tracing::warn!(%error, "connection not accepted");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "no TCP_NODELAY");
        }
        let service = TowerToHyperService::new(router.clone());
        let connection = graceful.watch(builder.serve_connection(TokioIo::new(stream), service));
        tokio::spawn(async move {
            // a peer that breaks off is no fault of ours
            drop(connection.await);
            drop(place);
        });
    }
    drop(listener);
    graceful.shutdown().await;
}
