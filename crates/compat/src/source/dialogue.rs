//! The SMTP dialogue of a client in lock step: after each reply, it sends the next command. The dialogue uses no socket
//! and no clock, so tests need neither.
//!
//! ```text
//! Greeting ─▶ Hello ─▶ (StartTls ─▶ SecureHello) ─▶ Mail ─▶ Recipient … ─▶ Data ─▶ EndOfData ─▶ Quit, or Mail again
//!               └▶ OldHello ┘                         └──────────┴──────────┴─▶ Reset ─▶ Quit, or Mail again
//! ```
use super::dialect::{Diagnostic, Dialect, DialogueState, Extensions, MessageTask, RenderContext, Verdict};
use mailrun_net::Outbox;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Send the commands that were written, if any, and then wait for a reply.
    Wait,
    /// Send the message that was written, and then wait for a reply.
    Message,
    /// Begin TLS, and then call [`Dialogue::tls_established`].
    StartTls,
    Idle,
    Close,
}

pub(crate) struct Output<'a> {
    pub(crate) out: &'a mut Outbox,
    pub(crate) diagnostics: &'a mut Vec<Diagnostic>,
    pub(crate) descriptor: i32,
}

impl Output<'_> {
    /// Passes the command that starts at offset `start` to `Dialect::command_written`, and then appends CRLF.
    fn end_command<D: Dialect>(&mut self, run: &D, start: usize) {
        let out = self.out.bytes();
        run.command_written(&out[start..], self.diagnostics);
        out.extend_from_slice(b"\r\n");
    }

    fn write_command<D: Dialect>(&mut self, run: &D, command: &[u8]) {
        let start = self.out.bytes().len();
        self.out.bytes().extend_from_slice(command);
        self.end_command(run, start);
    }
}

#[derive(Debug)]
pub(crate) struct Dialogue {
    state: DialogueState,
    task: MessageTask,
    extensions: Extensions,
    recipients_sent: i64,
    recipients_accepted: u32,
    /// Number that was added to the last recipient's address, if any. The `To:` header may repeat this number.
    recipient_number: Option<u32>,
    /// Number of replies to the end of data that the server must still send.
    replies_due: u32,
    /// False once a reply has refused the message.
    is_delivered: bool,
}

impl Dialogue {
    pub(crate) fn new(task: MessageTask) -> Self {
        Self {
            state: DialogueState::Greeting,
            task,
            extensions: Extensions::default(),
            recipients_sent: 0,
            recipients_accepted: 0,
            recipient_number: None,
            replies_due: 0,
            is_delivered: false,
        }
    }

    pub(crate) fn state(&self) -> DialogueState {
        self.state
    }

    pub(crate) fn task(&self) -> MessageTask {
        self.task
    }

    pub(crate) fn begin<D: Dialect>(
        &mut self,
        task: MessageTask,
        run: &D,
        output: &mut Output<'_>,
    ) -> Result<Step, String> {
        self.task = task;
        self.recipients_sent = 0;
        self.recipients_accepted = 0;
        self.state = DialogueState::Mail;
        let start = output.out.bytes().len();
        run.write_sender(self.extensions, output.out.bytes())?;
        output.end_command(run, start);
        Ok(Step::Wait)
    }

    pub(crate) fn quit<D: Dialect>(&mut self, run: &D, output: &mut Output<'_>) -> Step {
        output.write_command(run, b"QUIT");
        self.wait_for(DialogueState::Quit)
    }

    pub(crate) fn tls_established<D: Dialect>(&mut self, run: &D, output: &mut Output<'_>) -> Result<Step, String> {
        self.greet(DialogueState::SecureHello, run, output)
    }

    pub(crate) fn handle_reply<D: Dialect>(
        &mut self,
        reply: &[u8],
        run: &D,
        output: &mut Output<'_>,
    ) -> Result<Step, String> {
        let verdict = run.judge(self.state, reply, output.diagnostics)?;
        if verdict == Verdict::Closing {
            return Ok(Step::Close);
        }
        let is_accepted = verdict == Verdict::Accepted;
        match self.state {
            DialogueState::Greeting => self.greet(DialogueState::Hello, run, output),
            DialogueState::Hello if !is_accepted => self.greet(DialogueState::OldHello, run, output),
            DialogueState::Hello | DialogueState::OldHello => {
                if self.state == DialogueState::Hello {
                    self.extensions = run.extensions(reply);
                }
                if run.shared().tls.is_none() {
                    return self.begin(self.task, run, output);
                }
                output.write_command(run, b"STARTTLS");
                Ok(self.wait_for(DialogueState::StartTls))
            }
            DialogueState::StartTls => Ok(Step::StartTls),
            DialogueState::SecureHello => {
                self.extensions = run.extensions(reply);
                self.begin(self.task, run, output)
            }
            DialogueState::Mail | DialogueState::Data if !is_accepted => Ok(self.reset(run, output)),
            DialogueState::Mail => self.write_recipient(run, output),
            DialogueState::Recipient => {
                self.recipients_accepted += u32::from(is_accepted);
                if self.recipients_sent < run.recipients_each() {
                    return self.write_recipient(run, output);
                }
                if self.recipients_accepted == 0 {
                    return Ok(self.reset(run, output));
                }
                output.write_command(run, b"DATA");
                Ok(self.wait_for(DialogueState::Data))
            }
            DialogueState::Data => Ok(self.write_message(run, output)),
            DialogueState::EndOfData => {
                self.is_delivered &= is_accepted;
                self.replies_due -= 1;
                if self.replies_due > 0 {
                    return Ok(Step::Wait);
                }
                if self.is_delivered {
                    run.shared().timing.accepted(self.task.began);
                }
                Ok(self.finish_transaction(run, output))
            }
            DialogueState::Reset => Ok(self.finish_transaction(run, output)),
            DialogueState::Quit => Ok(Step::Close),
        }
    }

    /// Writes the client's greeting, such as EHLO. If the dialect sends no greeting in this state, begins the message
    /// at once.
    fn greet<D: Dialect>(&mut self, state: DialogueState, run: &D, output: &mut Output<'_>) -> Result<Step, String> {
        let start = output.out.bytes().len();
        if !run.write_hello(state, output.out.bytes()) {
            return self.begin(self.task, run, output);
        }
        output.end_command(run, start);
        Ok(self.wait_for(state))
    }

    fn write_recipient<D: Dialect>(&mut self, run: &D, output: &mut Output<'_>) -> Result<Step, String> {
        self.state = DialogueState::Recipient;
        let start = output.out.bytes().len();
        self.recipient_number = run.write_recipient(self.task, self.recipients_sent, output.out.bytes())?;
        output.end_command(run, start);
        self.recipients_sent += 1;
        Ok(Step::Wait)
    }

    fn write_message<D: Dialect>(&mut self, run: &D, output: &mut Output<'_>) -> Step {
        let Output { descriptor, .. } = *output;
        let place = RenderContext { task: self.task, descriptor, recipient_number: self.recipient_number };
        run.write_message(place, output.out);
        run.command_written(b".", output.diagnostics);
        // In LMTP, the server sends one reply for each accepted recipient (RFC 2033 §4.2). Postfix's smtp-source waits
        // for one reply for each recipient that it sent, so it hangs if a recipient was refused.
        self.replies_due = if run.speaks_lmtp() { self.recipients_accepted } else { 1 };
        self.is_delivered = true;
        self.state = DialogueState::EndOfData;
        Step::Message
    }

    fn reset<D: Dialect>(&mut self, run: &D, output: &mut Output<'_>) -> Step {
        output.write_command(run, b"RSET");
        self.wait_for(DialogueState::Reset)
    }

    fn finish_transaction<D: Dialect>(&mut self, run: &D, output: &mut Output<'_>) -> Step {
        if run.keeps_connection() { Step::Idle } else { self.quit(run, output) }
    }

    fn wait_for(&mut self, state: DialogueState) -> Step {
        self.state = state;
        Step::Wait
    }
}
