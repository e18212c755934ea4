//! Measures the cost of an AMQP client on loopback. The client sends to a queue of the embedded
//! listener, which runs on another thread, and receives from the same queue.
//!
//! ```text
//! loopback [state|client|fe2o3] [MESSAGES] [BYTES] [WINDOW] [FRAME_BYTES]
//! ```
//! | client | what it is |
//! |---|---|
//! | `state` | the client role of the crate `amqp` on a socket, with one read and one write in each turn |
//! | `client` | `Connection`, which the bench uses |
//! | `fe2o3` | fe2o3-amqp |
#![allow(clippy::print_stdout)]
use bytes::{Buf, BytesMut};
use fe2o3_amqp::link::CreditMode;
use fe2o3_amqp::{Receiver, Sendable, Sender, Session};
use fe2o3_amqp_types::messaging::{ApplicationProperties, Body, Data, Header, Message, MessageId, Properties};
use mailrun_amqp::{
    AmqpConnection, ClientLogin, ConnectionEvent, ConnectionOptions, DecodeError, DeliveryOutcome, EncodedMessage,
    LinkId, LinkRequest, LinkRole, ListenerAuth, Reader, Writer,
};
use mailrun_mades::api::{OutgoingProperties, RunMessageId, payload};
use mailrun_mades::{Broker, Bytes, Connection, IncomingDelivery, ReceiverOptions, SenderOptions, Uuid};
use mailrun_mades_simulator::embedded::{ListenOptions, MemoryQueues, QueueLimits, serve};
use rustix::time::{ClockId, clock_gettime};
use serde_amqp::Value;
use std::collections::VecDeque;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;

/// The client adds no message while this many bytes wait to be written.
const OUTPUT_LIMIT: usize = 256 << 10;
const MIN_READ_BYTES: usize = 64 << 10;

#[derive(Clone)]
struct LoopbackOptions {
    client: String,
    messages: u64,
    bytes: usize,
    window: u32,
    frame_bytes: u32,
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize, usual: u64| words.get(at).map_or(usual, |word| word.parse().expect("a number"));
    let options = LoopbackOptions {
        client: words.first().map_or("state", |word| word).to_owned(),
        messages: number(1, 200_000),
        bytes: number(2, 100) as usize,
        window: number(3, 128) as u32,
        frame_bytes: number(4, 1_114_112) as u32,
    };
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.set_nonblocking(true).expect("a socket");
    let port = listener.local_addr().expect("a port").port();
    let (stop, stopped) = oneshot::channel();
    let peer = std::thread::spawn(move || runtime().block_on(peer(listener, stopped)));
    let began = Instant::now();
    let cpu = runtime().block_on(async {
        let work = async {
            match options.client.as_str() {
                "state" => state(port, &options).await,
                "client" => client(port, &options).await,
                "fe2o3" => theirs(port, &options).await,
                other => panic!("{other}: state, client or fe2o3"),
            }
        };
        tokio::time::timeout(Duration::from_secs(60), work).await.expect("done within a minute")
    });
    let elapsed = began.elapsed().as_secs_f64();
    stop.send(()).expect("a peer");
    let peer_cpu = peer.join().expect("no panic");
    let per = |time: Duration| time.as_secs_f64() * 1e6 / options.messages as f64;
    println!(
        "{:6} {} x {} B, window {}: {:.0} msg/s there and back, {:.1} MB/s each way, CPU a message {:.1} us here, {:.1} us there",
        options.client,
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

/// Returns the CPU time of this thread, including the time in the kernel.
fn cpu() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

async fn peer(listener: std::net::TcpListener, stopped: oneshot::Receiver<()>) -> Duration {
    let listener = TcpListener::from_std(listener).expect("a listener");
    let queues = MemoryQueues::new(QueueLimits::default());
    tokio::select! {
        () = serve(listener, queues, ListenOptions::new(ListenerAuth::Any), Default::default()) => {}
        _ = stopped => {}
    }
    cpu()
}

struct StateClient<'o> {
    options: &'o LoopbackOptions,
    connection: AmqpConnection<()>,
    to: Option<LinkId>,
    from: Option<LinkId>,
    payload: Bytes,
    sections: Vec<u8>,
    id: String,
    sent: u64,
    settled: u64,
    received: u64,
}

/// Measures the client role of the crate `amqp`, without the `Connection` that the bench uses.
async fn state(port: u16, options: &LoopbackOptions) -> Duration {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await.expect("connected");
    stream.set_nodelay(true).expect("a socket");
    let (mut reader, mut writer) = stream.split();
    let mut client = StateClient::new(options);
    let mut input = BytesMut::new();
    while client.work(&mut input) {
        let waiting = client.connection.output().has_remaining();
        input.reserve(MIN_READ_BYTES);
        tokio::select! {
            biased;
            written = writer.write_buf(client.connection.output()), if waiting => assert!(written.expect("written") > 0),
            read = reader.read_buf(&mut input) => assert!(read.expect("read") > 0, "the peer hangs up"),
        }
    }
    cpu()
}

impl<'o> StateClient<'o> {
    fn new(options: &'o LoopbackOptions) -> Self {
        let connection = ConnectionOptions {
            container: "client".to_owned(),
            hostname: Some("localhost".to_owned()),
            max_frame_size: options.frame_bytes,
            idle_timeout_ms: 60_000,
            max_message_bytes: 64 << 20,
        };
        Self {
            options,
            connection: AmqpConnection::client(ClientLogin::Anonymous, connection),
            to: None,
            from: None,
            payload: vec![b'x'; options.bytes].into(),
            sections: Vec::new(),
            id: String::new(),
            sent: 0,
            settled: 0,
            received: 0,
        }
    }

    /// Handles the bytes that were read, and sends as many messages as the limits permit. Returns false when all
    /// messages have been sent and received.
    fn work(&mut self, input: &mut BytesMut) -> bool {
        while let Some(event) = self.connection.next_event(input).expect("AMQP") {
            self.handle_event(event);
        }
        self.grant_credit();
        self.send();
        self.connection.write_dispositions();
        let done = self.settled == self.options.messages && self.received == self.options.messages;
        !done || self.connection.output().has_remaining()
    }

    fn handle_event(&mut self, event: ConnectionEvent<()>) {
        match event {
            ConnectionEvent::Opened => {
                self.to = Some(self.attach(LinkRole::Sender));
                self.from = Some(self.attach(LinkRole::Receiver));
            }
            ConnectionEvent::Settled { outcome, .. } => {
                assert_eq!(outcome, DeliveryOutcome::Accepted);
                self.settled += 1;
            }
            ConnectionEvent::MessageReceived { link, delivery, message, .. } => {
                let id = read_id(&message).expect("a message").expect("an id");
                assert_eq!(id.sequence, self.received);
                self.received += 1;
                self.connection.settle(link, delivery, DeliveryOutcome::Accepted);
            }
            ConnectionEvent::Attached { .. } | ConnectionEvent::CreditChanged => {}
            other => panic!("{other:?}"),
        }
    }

    fn attach(&mut self, role: LinkRole) -> LinkId {
        let session = self.connection.begin_session().expect("a session");
        let name = if role == LinkRole::Sender { "sender" } else { "receiver" };
        let request =
            LinkRequest { name, role, address: "q", capabilities: &[], settled: false, max_message_bytes: 64 << 20 };
        self.connection.attach_link(session, &request).expect("a link")
    }

    fn grant_credit(&mut self) {
        let max_credit = self.options.window.max(200);
        if let Some(link) = self.from.filter(|link| self.connection.credit(*link) <= max_credit / 2) {
            self.connection.grant(link, max_credit);
        }
    }

    /// Sends as many messages as the window, the credit and the output limit permit.
    fn send(&mut self) {
        let Some(link) = self.to else { return };
        while self.sent < self.options.messages
            && self.sent - self.settled < u64::from(self.options.window)
            && self.connection.output().remaining() < OUTPUT_LIMIT
            && self.connection.may_send(link)
        {
            RunMessageId { sequence: self.sent, run: Uuid::from_u128(1) }.write_into(&mut self.id);
            self.sections.clear();
            write_sections(&mut self.sections, &self.id, self.payload.len());
            self.connection.send_parts(link, &self.sections, self.payload.clone(), ());
            self.sent += 1;
        }
    }
}

/// Writes the same sections as an `OutgoingProperties` template, and the beginning of a data section of `length` bytes.
fn write_sections(octets: &mut Vec<u8>, id: &str, length: usize) {
    let mut out = Writer::new(octets);
    out.described_list(0x70, |fields| fields.boolean(true));
    out.described_list(0x73, |fields| {
        (0..5).for_each(|_| fields.null());
        fields.string(id);
        (0..3).for_each(|_| fields.null());
        fields.timestamp(1);
    });
    out.described_map(0x74, |map| {
        let texts = [("receiverCode", "receiver"), ("messageType", "TYPE"), ("businessType", "TYPE")];
        for (name, value) in texts.into_iter().chain([("baMessageID", id), ("senderApplication", "mailrun")]) {
            map.string(name);
            map.string(value);
        }
        map.string("isTracingMessage");
        map.boolean(false);
    });
    octets.extend_from_slice(&[0, 0x53, 0x75, 0xb0]);
    octets.extend_from_slice(&(length as u32).to_be_bytes());
}

fn read_id(message: &EncodedMessage) -> Result<Option<RunMessageId>, DecodeError> {
    let mut reader = Reader::new(message.pieces().first().ok_or(DecodeError::Truncated)?);
    loop {
        let section = reader.value()?;
        if section.descriptor() != Some(0x74) {
            continue;
        }
        let mut entries = section.as_map().ok_or(DecodeError::Expected("application-properties"))?;
        while let Some(name) = entries.element()? {
            let value = entries.element()?;
            if name.as_text() == Some("baMessageID") {
                return Ok(value.and_then(|value| value.as_string()).and_then(RunMessageId::read));
            }
        }
        return Ok(None);
    }
}

async fn client(port: u16, options: &LoopbackOptions) -> Duration {
    let url = format!("amqp://127.0.0.1:{port}").parse().expect("a URL");
    let broker = Broker { max_frame_size: options.frame_bytes, ..Broker::new(url, "client") };
    let mut connection = Connection::open(&broker).await.expect("open");
    let mut sender = connection.attach_sender(&SenderOptions::new("q", options.window)).await.expect("an outlet");
    let mut receiver =
        connection.attach_receiver(&ReceiverOptions::new("q", options.window.max(200))).await.expect("an inlet");
    let messages = options.messages;
    let receiving = tokio::spawn(async move {
        let mut count = 0;
        while count < messages {
            match receiver.next().await.expect("a message") {
                IncomingDelivery::Delivery(delivery) => receiver.accept(delivery.handle).expect("accepted"),
                IncomingDelivery::Undecodable { why, .. } => panic!("{why}"),
            }
            count += 1;
        }
        // Yield, so that the connection can tell the broker that the last messages were accepted.
        tokio::task::yield_now().await;
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
    cpu()
}

/// Measures the unmodified crate fe2o3-amqp on a socket with TCP_NODELAY.
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
    let mut message = their_message(options.bytes);
    let mut in_flight = VecDeque::new();
    for sequence in 0..options.messages {
        if in_flight.len() == options.window as usize {
            let _ = in_flight.pop_front().expect("one").await;
        }
        let id = RunMessageId { sequence, run }.to_string();
        if let Some(properties) = &mut message.message.properties {
            properties.correlation_id = Some(MessageId::String(id.clone()));
        }
        if let Some(all) = &mut message.message.application_properties {
            all.insert("baMessageID".to_owned(), id.into());
        }
        in_flight.push_back(sender.send_batchable_ref(&message).await.expect("sent"));
    }
    for settling in in_flight {
        settling.await.expect("settled");
    }
    receiving.await.expect("no panic");
    cpu()
}

/// Builds a message with the types of fe2o3-amqp. It is similar to the message of an `OutgoingProperties` template.
fn their_message(bytes: usize) -> Sendable<Data> {
    let texts = ["receiverCode", "messageType", "businessType", "baMessageID", "senderApplication"];
    let texts = texts.map(|name| (name.to_owned(), "TYPE".to_owned().into()));
    let message = Message {
        header: Some(Header { durable: true, ..Header::default() }),
        delivery_annotations: None,
        message_annotations: None,
        properties: Some(Properties::default()),
        application_properties: Some(ApplicationProperties(texts.into_iter().collect())),
        body: Data::from(vec![b'x'; bytes]),
        footer: None,
    };
    Sendable { message, message_format: 0, settled: None }
}
