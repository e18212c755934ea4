//! An echo server on one thread. Start it with `cargo run -p mailrun-eventloop --example echo -- 127.0.0.1:7777`.
#![allow(clippy::print_stdout, reason = "an example shows what it does")]
use mailrun_eventloop::{Acceptor, Endpoint, Socket, listener, worker};
use std::io;

async fn echo(socket: Socket) -> io::Result<()> {
    let mut room = [0; 4096];
    loop {
        let count = socket.read(&mut room).await?;
        if count == 0 {
            return Ok(());
        }
        socket.write_all(&room[..count]).await?;
    }
}

fn main() -> io::Result<()> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:7777".to_owned());
    let (listener, endpoint) = listener::listen_at(&Endpoint::listening(&address)?)?;
    println!("listening on {endpoint}");
    worker::run(async move {
        let acceptor = Acceptor::new(listener)?;
        loop {
            let (descriptor, _) = acceptor.accept().await?;
            worker::spawn_local(async move {
                if let Ok(socket) = Socket::from_accepted(descriptor)
                    && let Err(error) = echo(socket).await
                {
                    println!("a connection broke: {error}");
                }
            });
        }
    })?
}
