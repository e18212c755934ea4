//! Handlers that receive each message with its envelope, as soon as the message is complete.
//!
//! ```text
//! MAIL ──▶ sender     RCPT ──▶ recipients     DATA, BDAT ──▶ content     end ──▶ handle_message
//!   └──── RSET, EHLO, a refused or broken message, the end of the session: all of it is forgotten ────┘
//! ```
use crate::handler::{Answer, CloseReason, Handler, LoginOutcome, Peer, Service};
use crate::tls::Handshake;
use mailrun_smtp::Path;
use mailrun_smtp::command::{BodyType, Hello, Mail};
use mailrun_smtp::login::{Auth, Proof};
use mailrun_smtp::proxy::ProxyHeader;
use mailrun_smtp::reply::Reply;
use mailrun_smtp::reply_reason::ReplyReason;
use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// Default size limit of a message in bytes: 32 MiB, as in aiosmtpd.
pub(crate) const DEFAULT_MESSAGE_BYTES: u64 = 32 << 20;
/// Default limit for the memory, in bytes, of all messages that are being received at the same time.
const DEFAULT_BUFFER_BYTES: usize = 512 << 20;
/// Minimum number of bytes that a message takes from the budget at a time, so that small blocks do
/// not each cost an allocation.
const MIN_GROWTH: usize = 4096;

/// A message that has arrived completely, with its sender, its recipients and facts about the client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReceivedMessage {
    /// Address of the client that sent the message.
    pub client: SocketAddr,
    /// Name that the client gave in EHLO, HELO or LHLO, which may be false.
    pub hello: String,
    /// Name of the user, if [`MessageHandler::handle_login`] accepted a login.
    pub user: Option<String>,
    /// TLS version, cipher suite and other results of the TLS handshake, if the connection uses TLS.
    pub handshake: Option<Handshake>,
    /// Address of the sender, which is empty for a notification. A notification must never cause another notification.
    pub sender: String,
    /// Addresses of the accepted recipients, in the order of the RCPT commands.
    pub recipients: Vec<String>,
    /// Kind of content that the client announced in MAIL (`BODY=`), such as 8BITMIME.
    pub body: BodyType,
    /// Content of the message, without dot-stuffing. Its lines end in `<CRLF>`, unless it is
    /// [binary](BodyType::Binary).
    pub content: Vec<u8>,
}

/// Lets an embedding program accept or refuse recipients, logins and whole messages. Every closure
/// `FnMut(ReceivedMessage) -> Answer` implements this trait.
///
/// ```
/// use mailrun_net::{Answer, ReceivedMessage, Server};
/// # fn main() -> std::io::Result<()> {
/// let print = |message: ReceivedMessage| {
///     println!("{} bytes from {}", message.content.len(), message.sender);
///     Answer::Yes
/// };
/// let server = Server::for_messages(print).start("127.0.0.1:0".parse().unwrap())?;
/// # server.stop();
/// # Ok(())
/// # }
/// ```
pub trait MessageHandler: 'static {
    /// Accepts or refuses a complete message. A positive answer takes responsibility for the message (RFC 5321 §6.1),
    /// so the handler must first put it where it cannot be lost. If that takes time, use [`Answer::later`].
    fn handle_message(&mut self, message: ReceivedMessage) -> Answer;

    /// Decides about a recipient (RCPT). `message` has the client, the user, the sender and the recipients so far. The
    /// default accepts everybody, which is safe only for a server that does not deliver to other hosts.
    fn handle_recipient(&mut self, message: &ReceivedMessage, recipient: &Path<'_>) -> Answer {
        let _ = (message, recipient);
        Answer::Yes
    }

    /// Decides whether the client's name and password belong together, if AUTH is [offered](crate::Server::auth).
    /// Refuses everybody by default.
    fn handle_login(&mut self, name: &str, password: &[u8]) -> Answer {
        let _ = (name, password);
        Answer::Reply(ReplyReason::NotAuthenticated.reply().clone())
    }
}

impl<F: FnMut(ReceivedMessage) -> Answer + 'static> MessageHandler for F {
    fn handle_message(&mut self, message: ReceivedMessage) -> Answer {
        self(message)
    }
}

/// Service that gives each session a clone of its [`MessageHandler`].
#[derive(Clone, Debug)]
pub struct MessageService<H> {
    handler: H,
    budget: BufferBudget,
}

impl<H: MessageHandler + Clone> MessageService<H> {
    /// Creates a service whose sessions take the memory for messages from this budget.
    pub fn new(handler: H, budget: BufferBudget) -> Self {
        Self { handler, budget }
    }
}

impl<H: MessageHandler + Clone> Service for MessageService<H> {
    type Handler = BufferingHandler<H>;

    fn session(&self, peer: Peer) -> BufferingHandler<H> {
        BufferingHandler::new(self.handler.clone(), peer, self.budget.clone())
    }
}

/// Memory for messages that are being received, shared by all sessions of a server. If there is no
/// memory for a message, the client gets 452 and has to try again later.
#[derive(Clone, Debug)]
pub struct BufferBudget {
    used: Arc<AtomicUsize>,
    limit: usize,
}

impl Default for BufferBudget {
    fn default() -> Self {
        Self::new(DEFAULT_BUFFER_BYTES)
    }
}

impl BufferBudget {
    /// Creates a budget of this number of bytes, which all clones of the budget share.
    pub fn new(limit: usize) -> Self {
        Self { used: Arc::default(), limit }
    }

    /// Returns the number of bytes that messages take from the budget at present.
    pub fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    fn try_take(&self, bytes: usize) -> bool {
        // Add the bytes first, and subtract them again if the limit is exceeded. If the limit were checked first,
        // another worker could take the last bytes before the addition.
        let before = self.used.fetch_add(bytes, Ordering::Relaxed);
        let has_room = before.checked_add(bytes).is_some_and(|after| after <= self.limit);
        if !has_room {
            self.give_back(bytes);
        }
        has_room
    }

    fn give_back(&self, bytes: usize) {
        self.used.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// The bytes that one message has taken from the budget. They are given back when the value is dropped.
#[derive(Debug)]
struct BufferShare {
    budget: BufferBudget,
    bytes: usize,
}

impl Drop for BufferShare {
    fn drop(&mut self) {
        self.budget.give_back(self.bytes);
    }
}

#[derive(Debug)]
struct ContentBuffer {
    content: Vec<u8>,
    share: BufferShare,
    is_short: bool,
}

impl ContentBuffer {
    fn new(budget: BufferBudget) -> Self {
        Self { content: Vec::new(), share: BufferShare { budget, bytes: 0 }, is_short: false }
    }

    /// Appends bytes to the message's content. If the budget has no memory for them, drops the whole content, and the
    /// client gets 452 at the end of the message.
    fn append(&mut self, block: &[u8]) {
        if self.is_short {
            return;
        }
        let needed = self.content.len() + block.len();
        if needed > self.content.capacity() {
            let wanted = needed.max(2 * self.content.capacity()).max(MIN_GROWTH);
            if !self.share.budget.try_take(wanted - self.share.bytes) {
                self.clear();
                self.is_short = true;
                return;
            }
            self.share.bytes = wanted;
            self.content.reserve_exact(wanted - self.content.len());
        }
        self.content.extend_from_slice(block);
    }

    /// Removes and returns the content, with its share of the budget. The caller must keep the share as long as the
    /// handler holds the content, because dropping the share returns the bytes to the budget.
    fn take(&mut self) -> (Vec<u8>, BufferShare) {
        let empty = Self::new(self.share.budget.clone());
        let Self { content, share, .. } = std::mem::replace(self, empty);
        (content, share)
    }

    fn clear(&mut self) {
        self.take();
    }
}

/// Handler of one session. Collects each message in memory, and passes it to a [`MessageHandler`] when it is complete.
#[derive(Debug)]
pub struct BufferingHandler<H> {
    handler: H,
    /// Message so far, except its content, which is in `buffer`.
    message: ReceivedMessage,
    buffer: ContentBuffer,
    /// Recipient that an [`Answer::Later`] has accepted. The next RCPT or DATA adds it to `message`.
    late_recipient: Rc<RefCell<Option<String>>>,
    /// User name of a login that is still being decided.
    candidate: Option<String>,
}

impl<H: MessageHandler> BufferingHandler<H> {
    /// Creates the handler of one session. Its messages take their memory from `budget`.
    pub fn new(handler: H, peer: Peer, budget: BufferBudget) -> Self {
        let message = ReceivedMessage {
            client: peer.address,
            hello: String::new(),
            user: None,
            handshake: None,
            sender: String::new(),
            recipients: Vec::new(),
            body: BodyType::default(),
            content: Vec::new(),
        };
        let buffer = ContentBuffer::new(budget);
        Self { handler, message, buffer, late_recipient: Rc::default(), candidate: None }
    }

    fn forget(&mut self) {
        self.message.sender.clear();
        self.message.recipients.clear();
        self.message.body = BodyType::default();
        self.late_recipient.take();
        self.buffer.clear();
    }

    /// Adds the recipient of the last RCPT to the message if an [`Answer::Later`] has accepted this recipient in the
    /// meantime.
    fn settle_recipient(&mut self) {
        self.message.recipients.extend(self.late_recipient.take());
    }
}

/// Returns true for [`Answer::Yes`] and for a positive reply. [`Answer::Later`] counts as false, because its result is
/// not known yet.
fn accepts(answer: &Answer) -> bool {
    match answer {
        Answer::Yes => true,
        Answer::Reply(reply) => reply.is_positive(),
        Answer::Later(_) | Answer::Secret(_) | Answer::HangUp(_) | Answer::Reset => false,
    }
}

/// Waits until an answer is final. Needs a loop because the future of an [`Answer::Later`] may return another
/// [`Answer::Later`].
async fn awaited(mut answer: Answer) -> Answer {
    while let Answer::Later(later) = answer {
        answer = later.await;
    }
    answer
}

/// Wraps an answer about a recipient that takes time. If the final answer accepts the recipient, stores it in `kept`.
fn keeping(answer: Answer, recipient: String, kept: Rc<RefCell<Option<String>>>) -> Answer {
    Answer::eventually(async move {
        let answer = awaited(answer).await;
        if accepts(&answer) {
            kept.replace(Some(recipient));
        }
        answer
    })
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

impl<H: MessageHandler> Handler for BufferingHandler<H> {
    fn hello(&mut self, _hello: Hello, name: &[u8]) -> Answer {
        self.message.hello = text(name);
        Answer::Yes
    }

    fn mail(&mut self, mail: &Mail<'_>) -> Answer {
        self.forget();
        self.message.sender = text(mail.sender.as_bytes());
        self.message.body = mail.body;
        Answer::Yes
    }

    fn recipient(&mut self, recipient: &Path<'_>) -> Answer {
        self.settle_recipient();
        let answer = self.handler.handle_recipient(&self.message, recipient);
        let address = text(recipient.as_bytes());
        if matches!(answer, Answer::Later(_)) {
            return keeping(answer, address, Rc::clone(&self.late_recipient));
        }
        if accepts(&answer) {
            self.message.recipients.push(address);
        }
        answer
    }

    fn data(&mut self) -> Answer {
        self.settle_recipient();
        self.buffer.clear();
        Answer::Yes
    }

    fn block(&mut self, block: &[u8]) {
        self.buffer.append(block);
    }

    fn message(&mut self, _bytes: u64, _now: Duration) -> Answer {
        if self.buffer.is_short {
            self.forget();
            return Answer::Reply(Reply::new(452, "4.3.1 Too much mail at a time, try again later"));
        }
        let (content, share) = self.buffer.take();
        let message = ReceivedMessage {
            sender: std::mem::take(&mut self.message.sender),
            recipients: std::mem::take(&mut self.message.recipients),
            content,
            ..self.message.clone()
        };
        let answer = self.handler.handle_message(message);
        if !matches!(answer, Answer::Later(_)) {
            return answer;
        }
        Answer::eventually(async move {
            let answer = awaited(answer).await;
            drop(share);
            answer
        })
    }

    fn reset(&mut self, _why: Option<ReplyReason>) {
        self.forget();
    }

    fn proxy_header(&mut self, header: &ProxyHeader) {
        if let ProxyHeader::Proxied { source, .. } = header {
            self.message.client = *source;
        }
    }

    fn tls_established(&mut self, handshake: &Handshake) {
        self.message.handshake = Some(handshake.clone());
        // Discard everything that the client sent before TLS, because TLS did not protect it (RFC 3207 §4.2).
        self.message.hello.clear();
        self.message.user = None;
    }

    fn login(&mut self, auth: &Auth<'_>) -> Answer {
        let Proof::Shown(password) = auth.proof else {
            return Answer::Reply(ReplyReason::AuthUnavailable.reply().clone());
        };
        self.candidate = Some(auth.name.to_owned());
        self.handler.handle_login(auth.name, password)
    }

    fn login_ended(&mut self, outcome: LoginOutcome) {
        let candidate = self.candidate.take();
        if outcome == LoginOutcome::Succeeded {
            self.message.user = candidate;
        }
    }

    fn disconnect(&mut self, _reason: CloseReason) {
        self.forget();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_message_that_finds_no_memory_takes_none() {
        let budget = BufferBudget::new(10_000);
        let mut one = ContentBuffer::new(budget.clone());
        let mut other = ContentBuffer::new(budget.clone());
        one.append(&[b'a'; 6000]);
        other.append(&[b'b'; 6000]);
        assert!(!one.is_short && other.is_short && budget.used() == 6000);
        other.append(b"b");
        assert!(other.content.is_empty() && other.is_short, "what follows is dropped too");
        let (content, share) = one.take();
        assert_eq!((content.len(), budget.used()), (6000, 6000), "the handler still has it");
        drop(share);
        assert_eq!(budget.used(), 0, "a client that is silent after its message keeps nothing");
        other.clear();
        other.append(&[b'b'; 6000]);
        assert!(!other.is_short);
        drop(other);
        assert_eq!(budget.used(), 0);
    }

    proptest! {
        /// If the budget had room for all blocks since the buffer was last cleared, the buffer must contain these
        /// blocks. Otherwise, it must be empty. It must never allocate more bytes than it has reserved in the budget.
        #[test]
        fn memory_is_charged_before_it_is_taken(
            limit in 0..40_000_usize,
            steps in prop::collection::vec((0..9000_usize, 0..8_u8), 0..40),
        ) {
            let budget = BufferBudget::new(limit);
            let mut buffer = ContentBuffer::new(budget.clone());
            let mut expected = Vec::new();
            for (length, what) in steps {
                if what == 0 {
                    buffer.clear();
                    expected.clear();
                } else {
                    let block = vec![what; length];
                    buffer.append(&block);
                    expected.extend_from_slice(&block);
                }
                prop_assert!(buffer.content.capacity() <= buffer.share.bytes && buffer.share.bytes == budget.used());
                prop_assert!(budget.used() <= limit);
                let is_right = if buffer.is_short { buffer.content.is_empty() } else { buffer.content == expected };
                prop_assert!(is_right);
            }
            drop(buffer);
            prop_assert_eq!(budget.used(), 0);
        }
    }
}
