//! Cost of fe2o3-amqp on loopback, by itself and behind our stream: a client sends, a peer on another thread accepts
//! and sends everything back.
//!
//! ```text
//! loopback [ours|fe2o3] [MESSAGES] [BYTES] [WINDOW] [FRAME_BYTES]
//! ```
#![allow(clippy::print_stdout)]
use fe2o3_amqp::acceptor::{ConnectionAcceptor, LinkAcceptor, LinkEndpoint, SessionAcceptor};
use fe2o3_amqp::link::CreditMode;
use fe2o3_amqp::{Receiver, Sender, Session};
use fe2o3_amqp_types::messaging::Body;
use mailrun_mades::api::{OutgoingProperties, payload};
use mailrun_mades::{Broker, Coalescing, Connection, IncomingDelivery, ReceiverOptions, SenderOptions, Uuid};
use rustix::time::{ClockId, clock_gettime};
use serde_amqp::Value;
use std::collections::VecDeque;
use std::time::{Duration, Instant};
use tokio::net::{TcpListener, TcpStream};

#[derive(Clone)]
struct LoopbackOptions {
    is_ours: bool,
    messages: u64,
    bytes: usize,
    window: u32,
    frame_bytes: u32,
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize, usual: u64| words.get(at).map_or(usual, |word| word.parse().expect("a number"));
    let options = LoopbackOptions {
        is_ours: words.first().is_none_or(|word| word == "ours"),
        messages: number(1, 200_000),
        bytes: number(2, 100) as usize,
        window: number(3, 128) as u32,
        frame_bytes: number(4, 1_114_112) as u32,
    };
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.set_nonblocking(true).expect("a socket");
    let port = listener.local_addr().expect("a port").port();
    let peer_load = options.clone();
    let peer = std::thread::spawn(move || runtime().block_on(peer(listener, peer_load)));
    let began = Instant::now();
    let cpu = runtime().block_on(async {
        let work = async { if options.is_ours { ours(port, &options).await } else { theirs(port, &options).await } };
        tokio::time::timeout(Duration::from_secs(60), work).await.expect("done within a minute")
    });
    let elapsed = began.elapsed().as_secs_f64();
    let peer_cpu = peer.join().expect("no panic");
    let per = |time: Duration| time.as_secs_f64() * 1e6 / options.messages as f64;
    println!(
        "{} {} x {} B, window {}: {:.0} msg/s there and back, {:.1} MB/s each way, CPU a message {:.1} us here, {:.1} us there",
        if options.is_ours { "ours " } else { "fe2o3" },
        options.messages,
        options.bytes,
        options.window,
        options.messages as f64 / elapsed,
        options.messages as f64 * options.bytes as f64 / elapsed / 1e6,
        per(cpu),
        per(peer_cpu),
    );
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime")
}

/// The processor time of this thread, in the kernel included.
fn cpu() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Through our client side.
async fn ours(port: u16, options: &LoopbackOptions) -> Duration {
    let url = format!("amqp://127.0.0.1:{port}").parse().expect("a URL");
    let broker = Broker { max_frame_size: options.frame_bytes, ..Broker::new(url, "client") };
    let mut connection = Connection::open(&broker).await.expect("open");
    let mut sender = connection.attach_sender(&SenderOptions::new("q", options.window)).await.expect("an outlet");
    let mut receiver =
        connection.attach_receiver(&ReceiverOptions::new("q", options.window.max(200))).await.expect("an inlet");
    let stats = connection.stats().clone();
    let messages = options.messages;
    let receiving = tokio::spawn(async move {
        let mut count = 0;
        while count < messages {
            match receiver.next().await.expect("a message") {
                IncomingDelivery::Delivery(delivery) => receiver.accept(delivery.handle).await.expect("accepted"),
                IncomingDelivery::Undecodable { why, .. } => panic!("{why}"),
            }
            count += 1;
        }
        receiver.settle().await.expect("settled");
    });
    let run = Uuid::from_u128(1);
    let mut template = OutgoingProperties::new("receiver", "TYPE").template(run, payload(vec![b'x'; options.bytes]));
    let mut in_flight = VecDeque::new();
    for sequence in 0..options.messages {
        if in_flight.len() == options.window as usize {
            let settling: mailrun_mades::DispositionFuture = in_flight.pop_front().expect("one");
            settling.await.expect("settled");
        }
        in_flight.push_back(sender.send(template.fill(sequence, 1)).await.expect("sent"));
    }
    for settling in in_flight {
        settling.await.expect("settled");
    }
    receiving.await.expect("no panic");
    let spent = cpu();
    println!(
        "  {:.2} writes and {:.2} reads a message",
        stats.writes() as f64 / options.messages as f64,
        stats.reads() as f64 / options.messages as f64
    );
    spent
}

/// fe2o3-amqp as it is, with TCP_NODELAY.
async fn theirs(port: u16, options: &LoopbackOptions) -> Duration {
    let stream = TcpStream::connect(("127.0.0.1", port)).await.expect("connected");
    stream.set_nodelay(true).expect("a socket");
    let mut connection = fe2o3_amqp::Connection::builder()
        .container_id("client")
        .hostname("localhost")
        .max_frame_size(options.frame_bytes)
        .open_with_stream(stream)
        .await
        .expect("open");
    let mut session = Session::begin(&mut connection).await.expect("a session");
    let mut sender = Sender::attach(&mut session, "sender", "q").await.expect("a sender");
    // The peer takes a session and then its link.
    let mut other = Session::begin(&mut connection).await.expect("a session");
    let mut receiver = Receiver::builder()
        .name("receiver")
        .source("q")
        .credit_mode(CreditMode::Auto(options.window.max(200)))
        .attach(&mut other)
        .await
        .expect("a receiver");
    let messages = options.messages;
    let receiving = tokio::spawn(async move {
        for _ in 0..messages {
            let delivery = receiver.recv::<Body<Value>>().await.expect("a message");
            receiver.accept(&delivery).await.expect("accepted");
        }
    });
    let run = Uuid::from_u128(1);
    let mut template = OutgoingProperties::new("receiver", "TYPE").template(run, payload(vec![b'x'; options.bytes]));
    let mut in_flight = VecDeque::new();
    for sequence in 0..options.messages {
        if in_flight.len() == options.window as usize {
            let _ = in_flight.pop_front().expect("one").await;
        }
        in_flight.push_back(sender.send_batchable_ref(template.fill(sequence, 1)).await.expect("sent"));
    }
    for settling in in_flight {
        settling.await.expect("settled");
    }
    receiving.await.expect("no panic");
    cpu()
}

/// Accepts what comes and sends it back.
async fn peer(listener: std::net::TcpListener, options: LoopbackOptions) -> Duration {
    let listener = TcpListener::from_std(listener).expect("a listener");
    let (stream, _) = listener.accept().await.expect("a client");
    stream.set_nodelay(true).expect("a socket");
    let acceptor = ConnectionAcceptor::builder()
        .container_id("peer")
        .sasl_acceptor(fe2o3_amqp::acceptor::SaslAnonymousMechanism::new())
        .max_frame_size(options.frame_bytes)
        .build();
    let mut connection = if options.is_ours {
        acceptor.accept(Coalescing::new(stream).0).await.expect("open")
    } else {
        // The bare client speaks no SASL.
        let acceptor = ConnectionAcceptor::builder().container_id("peer").max_frame_size(options.frame_bytes).build();
        acceptor.accept(stream).await.expect("open")
    };
    let mut receiver = None;
    let mut sender = None;
    let mut sessions = Vec::new();
    for _ in 0..2 {
        let mut session = SessionAcceptor::new().accept(&mut connection).await.expect("a session");
        match LinkAcceptor::new().accept(&mut session).await.expect("a link") {
            LinkEndpoint::Sender(link) => sender = Some(link),
            LinkEndpoint::Receiver(link) => receiver = Some(link),
        }
        sessions.push(session);
    }
    let mut receiver = receiver.expect("a receiver");
    let mut sender = sender.expect("a sender");
    receiver.set_credit_mode(CreditMode::Auto(options.window.max(200)));
    receiver.set_credit(options.window.max(200)).await.expect("credit");
    let mut in_flight = VecDeque::new();
    for _ in 0..options.messages {
        let delivery = receiver.recv::<Body<Value>>().await.expect("a message");
        receiver.accept(&delivery).await.expect("accepted");
        if in_flight.len() == options.window as usize {
            let _ = in_flight.pop_front().expect("one").await;
        }
        in_flight.push_back(sender.send_batchable(delivery.into_message()).await.expect("sent"));
    }
    for settling in in_flight {
        settling.await.expect("settled");
    }
    cpu()
}
