//! A pooler in transaction mode: its clients share one connection to the database, each for a transaction at a time.

use std::io;
use std::sync::Arc;

use tokio::io::{AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::sync::Mutex;

use super::spawn;
use super::tap::{message, socket_and_name};

/// Opens a way to this database of the shared server through a pooler, and says its URL.
pub async fn pooled(database_url: &str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let (socket, name) = socket_and_name(database_url);
    spawn(async move {
        let mut server: Option<(Arc<Mutex<UnixStream>>, Vec<u8>)> = None;
        while let Ok((mut client, _)) = listener.accept().await {
            let Some((hello, ..)) = message(&mut client, false).await else { continue };
            if server.is_none() {
                let mut connection = UnixStream::connect(&socket).await.unwrap();
                connection.write_all(&hello).await.unwrap();
                let mut greeting = Vec::new();
                until_ready(&mut connection, &mut greeting).await.unwrap();
                server = Some((Arc::new(Mutex::new(connection)), greeting));
            }
            let (connection, greeting) = server.as_ref().unwrap();
            client.write_all(greeting).await.unwrap();
            spawn(lend(client, Arc::clone(connection)));
        }
    });
    format!("postgres://roadstead@127.0.0.1:{port}/{name}?sslmode=disable")
}

/// Lends the server to a client, from the first message of each transaction until its end.
async fn lend(mut client: TcpStream, server: Arc<Mutex<UnixStream>>) -> Option<()> {
    let mut lent = None;
    loop {
        let (whole, kind, _) = message(&mut client, true).await?;
        if kind == b'X' {
            return None;
        }
        let mut server = match lent.take() {
            Some(server) => server,
            None => server.lock().await,
        };
        server.write_all(&whole).await.unwrap();
        // A query by itself, or the end of a batch, is answered until the server is ready for more.
        let over = matches!(kind, b'Q' | b'S') && until_ready(&mut server, &mut client).await.ok()?;
        if !over {
            lent = Some(server);
        }
    }
}

/// Passes on what the server says until it is ready for more: whether it is outside of a transaction then.
async fn until_ready(server: &mut UnixStream, client: &mut (impl AsyncWrite + Unpin)) -> io::Result<bool> {
    loop {
        let (whole, kind, rest) = message(server, true).await.ok_or(io::ErrorKind::UnexpectedEof)?;
        client.write_all(&whole).await?;
        if kind == b'Z' {
            return Ok(rest == b"I");
        }
    }
}
