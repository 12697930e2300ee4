//! The least that a proxy can do: it hands bytes on, both ways, in one thread.

use std::net::Ipv4Addr;

use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};

/// Relays until the process is ended.
///
/// # Errors
/// When the port cannot be used.
pub fn run(listen: u16, to: u16) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()?;
    runtime.block_on(async {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, listen)).await?;
        loop {
            let (client, _) = listener.accept().await?;
            tokio::spawn(relay(client, to));
        }
    })
}

/// Ends with either side; whoever is left sees its connection closed.
async fn relay(mut client: TcpStream, to: u16) -> std::io::Result<()> {
    let mut server = TcpStream::connect((Ipv4Addr::LOCALHOST, to)).await?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    copy_bidirectional(&mut client, &mut server).await?;
    Ok(())
}
