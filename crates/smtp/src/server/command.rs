//! Checks the order of a client's commands (RFC 5321 §4.1.4), and whether the server offers and
//! permits them.
use super::auth;
use super::core::ServerCore;
use super::event::Event;
use super::state::{
    Addresses, AuthRequest, ChunkRefusal, CommandState, MessagePace, OpenQuestion, SkippedChunk, State,
    TransactionState, Transition,
};
use crate::chunk::ContentKind;
use crate::command::{BodyType, Chunk, Command, Hello, Mail, Recipient};
use crate::reply::Reply;
use crate::reply_reason::ReplyReason;
use crate::sasl::Mechanism;
use crate::settings::Protocol;
use crate::xclient::Xclient;
use std::time::Duration;

/// Maximum number of refused recipients of a message that are exempt from `Limits::idle_commands`. Further refusals
/// count, so that a client cannot keep a session busy forever. Legitimate messages have far fewer recipients.
const MAX_DEFERRED_RECIPIENTS: u32 = 100_000;

impl TransactionState {
    fn new(mail: &Mail<'_>) -> Self {
        let addresses = if mail.smtp_utf8 { Addresses::Utf8 } else { Addresses::Ascii };
        let content_kind = if mail.body == BodyType::Binary { ContentKind::Any } else { ContentKind::Lines };
        Self { accepted: 0, refused: 0, addresses, content_kind }
    }

    /// Counts a recipient that the session or the application has refused with this reply. If other recipients were
    /// accepted, a 4yz refusal does not count towards `Limits::idle_commands`, because ending the session would keep
    /// the message from the accepted recipients. The sender retries the refused recipient later (RFC 5321 §4.5.3.1.10).
    pub(super) fn refuse_recipient(&mut self, reply: &Reply, core: &mut ServerCore) {
        self.refused = self.refused.saturating_add(1);
        let is_deferred = reply.code() / 100 == 4;
        if is_deferred && self.accepted > 0 && self.refused <= MAX_DEFERRED_RECIPIENTS {
            core.idle_commands -= 1;
        }
    }
}

fn ask(question: OpenQuestion, event: Event<'_>) -> Transition<'_> {
    (State::Answer(question), Some(event))
}

impl CommandState {
    pub(super) fn step<'a>(
        self,
        command: &Result<Command<'a>, ReplyReason>,
        now: Duration,
        core: &mut ServerCore,
        out: &mut Vec<u8>,
    ) -> Transition<'a> {
        if core.is_too_much(command, now) {
            return core.give_up(ReplyReason::TooManyCommands, out);
        }
        match command {
            Ok(command) => self.command(command, now, core, out),
            Err(reason) => self.refuse(*reason, core, out),
        }
    }

    /// Refuses the command if it is not allowed in the current state. Otherwise asks the application whether to accept
    /// the command, except for a few commands that need no decision, such as HELP.
    fn command<'a>(
        self,
        command: &Command<'a>,
        now: Duration,
        core: &mut ServerCore,
        out: &mut Vec<u8>,
    ) -> Transition<'a> {
        // Do not check BDAT here. The method `chunk` does so later, because the bytes of a refused chunk must be read
        // before the refusal is sent.
        if !matches!(command, Command::Chunk(_))
            && let Err(reason) = core.admits(command, &self)
        {
            return self.refuse(reason, core, out);
        }
        match command {
            Command::Hello(kind, name) => self.hello(*kind, name, core, out),
            Command::Mail(mail) => self.mail(mail, core, out),
            Command::Recipient(recipient) => self.recipient(recipient, core, out),
            Command::Data => self.data(core, out),
            Command::Chunk(chunk) => self.chunk(*chunk, now, core, out),
            Command::Reset => ask(OpenQuestion::Reset(self), Event::Reset),
            Command::Noop => ask(OpenQuestion::Noop(self), Event::Noop),
            Command::Verify(who) => ask(OpenQuestion::Verify(self), Event::Verify(who)),
            Command::Help => core.answered(State::Command(self), ReplyReason::Help, out),
            Command::Quit => ask(OpenQuestion::Quit(self), Event::Quit),
            Command::StartTls => self.start_tls(core, out),
            Command::Auth(mechanism, initial) => self.auth(*mechanism, *initial, core, out),
            Command::Xclient(xclient) => self.xclient(xclient, core, out),
        }
    }

    /// Refuses a command or an invalid line, and stays in the same state. If this refuses a recipient, counts the
    /// recipient, because the reply to a later DATA or BDAT depends on the number of refused recipients.
    pub(super) fn refuse<'a>(
        mut self,
        reason: ReplyReason,
        core: &mut ServerCore,
        out: &mut Vec<u8>,
    ) -> Transition<'a> {
        if self.is_in_good_faith() && matches!(reason, ReplyReason::NoValidRecipients | ReplyReason::RecipientFirst) {
            return core.answered(State::Command(self), reason, out);
        }
        let is_recipient = matches!(
            reason,
            ReplyReason::BadRecipient
                | ReplyReason::PathTooLong
                | ReplyReason::NeedsSmtpUtf8
                | ReplyReason::TooManyRecipients
        );
        if let Self::ExpectRecipient(transaction) = &mut self
            && is_recipient
        {
            transaction.refuse_recipient(reason.reply(), core);
        }
        let is_unknown = reason == ReplyReason::UnknownCommand && matches!(self, Self::ExpectHello);
        core.unknown += u32::from(is_unknown);
        core.refuse(State::Command(self), reason, out)
    }

    /// Returns true if a recipient of the transaction was refused. A later DATA or BDAT is then no error of the client,
    /// because a pipelining client sends it before it knows of the refusal (RFC 2920 §3.1, RFC 3030 §4.2).
    fn is_in_good_faith(&self) -> bool {
        matches!(self, Self::ExpectRecipient(TransactionState { refused: 1.., .. }))
    }

    pub(super) fn reset(&self) -> Self {
        match self {
            Self::ExpectHello => Self::ExpectHello,
            Self::ExpectMail | Self::ExpectRecipient(_) | Self::ExpectChunk(_) => Self::ExpectMail,
        }
    }

    fn hello<'a>(self, kind: Hello, name: &'a [u8], core: &mut ServerCore, out: &mut Vec<u8>) -> Transition<'a> {
        match (core.settings.protocol, kind) {
            (Protocol::Lmtp, Hello::Extended | Hello::Plain) => self.refuse(ReplyReason::NeedsLhlo, core, out),
            (Protocol::Smtp, Hello::Lmtp) => self.refuse(ReplyReason::NeedsEhlo, core, out),
            (Protocol::Smtp, Hello::Extended | Hello::Plain) | (Protocol::Lmtp, Hello::Lmtp) => {
                ask(OpenQuestion::Hello(kind, self), Event::Hello(kind, name))
            }
        }
    }

    fn mail<'a>(self, mail: &Mail<'a>, core: &mut ServerCore, out: &mut Vec<u8>) -> Transition<'a> {
        match self {
            Self::ExpectHello => self.refuse(ReplyReason::HelloFirst, core, out),
            Self::ExpectRecipient(_) | Self::ExpectChunk(_) => self.refuse(ReplyReason::NestedMail, core, out),
            Self::ExpectMail => match core.accepts_mail(mail) {
                Ok(()) => ask(OpenQuestion::Mail(TransactionState::new(mail)), Event::Mail(*mail)),
                Err(reason) => self.refuse(reason, core, out),
            },
        }
    }

    fn recipient<'a>(self, recipient: &Recipient<'a>, core: &mut ServerCore, out: &mut Vec<u8>) -> Transition<'a> {
        match self {
            Self::ExpectHello => self.refuse(ReplyReason::HelloFirst, core, out),
            Self::ExpectMail => self.refuse(ReplyReason::MailFirst, core, out),
            Self::ExpectChunk(_) => self.refuse(ReplyReason::MessageBegun, core, out),
            Self::ExpectRecipient(transaction) => match core.accepts_recipient(recipient, transaction) {
                Ok(()) => ask(OpenQuestion::Recipient(transaction), Event::Recipient(*recipient)),
                Err(reason) => self.refuse(reason, core, out),
            },
        }
    }

    fn data<'a>(self, core: &mut ServerCore, out: &mut Vec<u8>) -> Transition<'a> {
        match self {
            Self::ExpectHello => self.refuse(ReplyReason::HelloFirst, core, out),
            Self::ExpectMail => self.refuse(ReplyReason::MailFirst, core, out),
            Self::ExpectChunk(_) => self.refuse(ReplyReason::MessageBegun, core, out),
            Self::ExpectRecipient(transaction) => match core.has_recipients(transaction) {
                Err(reason) => self.refuse(reason, core, out),
                Ok(()) if transaction.content_kind == ContentKind::Any => {
                    self.refuse(ReplyReason::BinaryNeedsChunks, core, out)
                }
                Ok(()) => ask(OpenQuestion::Data(transaction), Event::Data),
            },
        }
    }

    /// Begins or refuses a chunk (BDAT, RFC 3030). The bytes of a refused chunk are still read,
    /// because the client sends them without waiting for a reply. A chunk that makes the message
    /// far too large ends the session.
    fn chunk<'a>(self, chunk: Chunk, now: Duration, core: &mut ServerCore, out: &mut Vec<u8>) -> Transition<'a> {
        if !core.offers().chunking {
            return self.refuse(ReplyReason::NotImplemented, core, out);
        }
        let total = self.message_bytes().saturating_add(chunk.bytes);
        if total > core.most_bytes() {
            return core.overwhelmed(ReplyReason::MessageTooBig, out);
        }
        let pace = MessagePace::begin(now, &core.settings.limits);
        let skip = |refusal| (SkippedChunk::state(chunk, pace, refusal), Some(Event::Answered));
        if let Err(reason) = core.admits(&Command::Chunk(chunk), &self) {
            return skip(ChunkRefusal::Command(self, reason));
        }
        let is_too_big = total > core.settings.limits.message_bytes;
        let too_big =
            |recipients| ChunkRefusal::Message(ReplyReason::MessageTooBig, core.replies_to_chunk(chunk, recipients));
        match self {
            Self::ExpectHello => skip(ChunkRefusal::Command(self, ReplyReason::HelloFirst)),
            Self::ExpectMail => skip(ChunkRefusal::Command(self, ReplyReason::MailFirst)),
            Self::ExpectRecipient(transaction) => match core.has_recipients(transaction) {
                Err(reason) => skip(ChunkRefusal::Command(self, reason)),
                Ok(()) if is_too_big => skip(too_big(transaction.accepted)),
                Ok(()) => ask(OpenQuestion::FirstChunk(transaction, chunk), Event::Data),
            },
            Self::ExpectChunk(message) if is_too_big => skip(too_big(message.recipients)),
            Self::ExpectChunk(message) => (message.continued(chunk), Some(Event::Answered)),
        }
    }

    fn message_bytes(&self) -> u64 {
        match self {
            Self::ExpectHello | Self::ExpectMail | Self::ExpectRecipient(_) => 0,
            Self::ExpectChunk(message) => message.bytes(),
        }
    }

    fn start_tls<'a>(self, core: &mut ServerCore, out: &mut Vec<u8>) -> Transition<'a> {
        let is_offered = core.offers().starttls || core.is_over_tls && core.settings.extensions.starttls;
        if !is_offered {
            return self.refuse(ReplyReason::NotImplemented, core, out);
        }
        match self {
            Self::ExpectRecipient(_) | Self::ExpectChunk(_) => self.refuse(ReplyReason::NestedMail, core, out),
            Self::ExpectHello | Self::ExpectMail if core.is_over_tls => self.refuse(ReplyReason::TlsActive, core, out),
            Self::ExpectHello => self.refuse(ReplyReason::HelloFirst, core, out),
            Self::ExpectMail => ask(OpenQuestion::StartTls, Event::StartTls),
        }
    }

    /// Begins a login. Refuses AUTH during a transaction, as RFC 4954 §4 requires.
    fn auth<'a>(
        self,
        mechanism: Option<Mechanism>,
        initial: Option<&[u8]>,
        core: &mut ServerCore,
        out: &mut Vec<u8>,
    ) -> Transition<'a> {
        if core.settings.extensions_over_tls.auth.is_empty() {
            return self.refuse(ReplyReason::NotImplemented, core, out);
        }
        match self {
            Self::ExpectRecipient(_) | Self::ExpectChunk(_) => self.refuse(ReplyReason::NestedMail, core, out),
            Self::ExpectHello => self.refuse(ReplyReason::HelloFirst, core, out),
            Self::ExpectMail if core.is_authenticated => self.refuse(ReplyReason::AlreadyAuthenticated, core, out),
            Self::ExpectMail => match core.accepts_login(mechanism, initial) {
                Ok(request) => auth::begin(request, core, out),
                Err(reason) => self.refuse(reason, core, out),
            },
        }
    }

    fn xclient<'a>(self, xclient: &Xclient<'a>, core: &mut ServerCore, out: &mut Vec<u8>) -> Transition<'a> {
        if core.offers().xclient.is_empty() {
            return self.refuse(ReplyReason::NotImplemented, core, out);
        }
        match self {
            Self::ExpectRecipient(_) | Self::ExpectChunk(_) => self.refuse(ReplyReason::NestedMail, core, out),
            Self::ExpectHello | Self::ExpectMail => {
                let is_logged_in = xclient.is_logged_in();
                ask(OpenQuestion::Xclient { is_logged_in, before: self }, Event::Xclient(*xclient))
            }
        }
    }
}

impl ServerCore {
    /// Refuses the command if the settings require TLS (RFC 3207 §4) or a login (RFC 4954 §6) for it, and the session
    /// does not have them yet.
    fn admits(&self, command: &Command<'_>, state: &CommandState) -> Result<(), ReplyReason> {
        let requires = &self.settings.requires;
        let is_free = matches!(command, Command::Hello(..) | Command::Noop | Command::Quit | Command::StartTls);
        if requires.tls && !self.is_over_tls && !is_free {
            return Err(ReplyReason::NeedsTls);
        }
        let needs_login = match command {
            // Before EHLO, these commands are refused later in any case, and that reply asks for EHLO.
            Command::Mail(_) | Command::Recipient(_) | Command::Data | Command::Chunk(_) => {
                !matches!(state, CommandState::ExpectHello)
            }
            Command::Verify(_) | Command::Help => true,
            Command::Hello(..) | Command::StartTls | Command::Auth(..) | Command::Xclient(_) => false,
            Command::Reset | Command::Noop | Command::Quit => false,
        };
        if requires.auth && !self.is_authenticated && needs_login {
            return Err(ReplyReason::NeedsAuth);
        }
        Ok(())
    }

    fn accepts_mail(&self, mail: &Mail<'_>) -> Result<(), ReplyReason> {
        let offers = self.offers();
        let is_unknown = (mail.size.is_some() && offers.size.is_none())
            || (mail.smtp_utf8 && !offers.smtp_utf8)
            || (mail.body == BodyType::EightBitMime && !offers.eight_bit_mime);
        if is_unknown {
            return Err(ReplyReason::UnknownParameter);
        }
        if mail.size.is_some_and(|size| size > self.settings.limits.message_bytes) {
            return Err(ReplyReason::MessageTooBig);
        }
        if mail.sender.is_internationalized() && !mail.smtp_utf8 {
            return Err(ReplyReason::NeedsSmtpUtf8);
        }
        if mail.body == BodyType::Binary && !offers.binary_mime {
            return Err(ReplyReason::BadParameter);
        }
        if (mail.returns.is_some() || mail.envelope_id.is_some()) && !offers.dsn {
            return Err(ReplyReason::UnknownParameter);
        }
        // Refuse the parameter AUTH only if the server offers no login even over TLS. A server that offers AUTH only
        // over TLS must accept the parameter even before TLS.
        if mail.auth.is_some() && self.settings.extensions_over_tls.auth.is_empty() {
            return Err(ReplyReason::UnknownParameter);
        }
        Ok(())
    }

    fn accepts_recipient(&self, recipient: &Recipient<'_>, transaction: TransactionState) -> Result<(), ReplyReason> {
        if transaction.addresses == Addresses::Ascii && recipient.path.is_internationalized() {
            return Err(ReplyReason::NeedsSmtpUtf8);
        }
        if (recipient.notify.is_some() || recipient.original.is_some()) && !self.offers().dsn {
            return Err(ReplyReason::UnknownParameter);
        }
        if transaction.accepted as usize >= self.settings.limits.recipients {
            return Err(ReplyReason::TooManyRecipients);
        }
        Ok(())
    }

    /// Checks that at least one recipient was accepted. If all recipients were refused, SMTP answers 554, but LMTP
    /// answers 503 (RFC 2033 §4.2). If there was no RCPT at all, both answer 503.
    fn has_recipients(&self, transaction: TransactionState) -> Result<(), ReplyReason> {
        match transaction {
            TransactionState { accepted: 1.., .. } => Ok(()),
            TransactionState { refused: 1.., .. } if self.settings.protocol == Protocol::Smtp => {
                Err(ReplyReason::NoValidRecipients)
            }
            TransactionState { accepted: 0, .. } => Err(ReplyReason::RecipientFirst),
        }
    }

    /// Checks that the server offers the mechanism of AUTH, and decodes the initial response.
    fn accepts_login(&self, mechanism: Option<Mechanism>, initial: Option<&[u8]>) -> Result<AuthRequest, ReplyReason> {
        let here = self.offers().auth;
        let over_tls = self.settings.extensions_over_tls.auth;
        match mechanism {
            Some(mechanism) if here.has(mechanism) => AuthRequest::new(mechanism, initial),
            Some(mechanism) if over_tls.has(mechanism) => Err(ReplyReason::AuthNeedsTls),
            _ => Err(ReplyReason::UnknownMechanism),
        }
    }
}
