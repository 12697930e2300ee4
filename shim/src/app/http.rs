//! `/metrics` for a scraper, `/health` for a load balancer; each on a port of its own.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::CONTENT_TYPE;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};

use super::host::Process;
use super::measure;
use crate::observe::metrics;

/// A request must be there within so long.
const REQUEST_LIMIT: Duration = Duration::from_secs(10);
/// Pause after a failed accept.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const TEXT: &str = "text/plain; charset=utf-8";

/// What a port serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Page {
    /// OpenMetrics, at `/` and `/metrics`.
    Metrics,
    /// 200 as long as clients are served, at any path.
    Health,
}

/// Serves a page for as long as the process lives.
///
/// # Errors
/// The port cannot be had.
pub async fn serve(process: Arc<Process>, port: u16, page: Page) -> anyhow::Result<()> {
    let host = process.config().general.host.clone();
    let listener = TcpListener::bind((host.as_str(), port))
        .await
        .with_context(|| format!("cannot listen on {host}:{port} for {page:?}"))?;
    tokio::spawn(async move {
        loop {
            match listener.accept().await {
                Ok((stream, peer)) => {
                    tokio::spawn(converse(process.clone(), stream, peer, page));
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot accept an HTTP client");
                    // Out of descriptors, say: nobody tells when there are some again.
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    });
    Ok(())
}

async fn converse(process: Arc<Process>, stream: TcpStream, peer: SocketAddr, page: Page) {
    let service = service_fn(|request: Request<Incoming>| {
        let response = answer(&process, &request, page);
        async move { Ok::<_, Infallible>(response) }
    });
    let served = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(REQUEST_LIMIT)
        .serve_connection(TokioIo::new(stream), service)
        .await;
    if let Err(error) = served {
        tracing::debug!(%peer, %error, "HTTP client");
    }
}

fn answer(process: &Process, request: &Request<Incoming>, page: Page) -> Response<Full<Bytes>> {
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        return response(StatusCode::METHOD_NOT_ALLOWED, TEXT, String::new());
    }
    match (page, request.uri().path()) {
        (Page::Metrics, "/" | "/metrics") => {
            let namespace = process.config().general.openmetrics_namespace.clone();
            let namespace = if namespace.is_empty() {
                "pgdog_".to_owned()
            } else {
                namespace
            };
            let text = metrics::render(&namespace, &measure::all(process));
            response(StatusCode::OK, OPENMETRICS, text)
        }
        (Page::Metrics, _) => response(StatusCode::NOT_FOUND, TEXT, String::new()),
        (Page::Health, _) => match process.trouble() {
            None => response(StatusCode::OK, TEXT, "ok\n".to_owned()),
            Some(why) => response(StatusCode::SERVICE_UNAVAILABLE, TEXT, format!("{why}\n")),
        },
    }
}

fn response(status: StatusCode, kind: &'static str, text: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(text)));
    *response.status_mut() = status;
    let kind = hyper::header::HeaderValue::from_static(kind);
    response.headers_mut().insert(CONTENT_TYPE, kind);
    response
}
