//! The pages that a shim serves to those who watch it.

use anyhow::Context as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// A port that nobody has at the moment.
///
/// # Errors
/// When there is none.
pub fn free_port() -> anyhow::Result<u16> {
    Ok(std::net::TcpListener::bind("127.0.0.1:0")?
        .local_addr()?
        .port())
}

/// The whole answer to a request.
///
/// # Errors
/// When nobody answers.
pub async fn get(port: u16, path: &str) -> anyhow::Result<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer)
}

/// The value of a metric's first sample with that label.
///
/// # Errors
/// When there is none.
pub fn metric(text: &str, name: &str, label: &str) -> anyhow::Result<f64> {
    let line = text
        .lines()
        .find(|line| line.starts_with(name) && line.contains(label))
        .with_context(|| format!("no {name} with {label} in {text}"))?;
    Ok(line.rsplit(' ').next().unwrap_or_default().parse()?)
}
