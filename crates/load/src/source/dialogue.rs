//! Prints the dialogue of a single message on standard output.
use mailrun_net::Handshake;
use mailrun_smtp::ReceivedReply;
use mailrun_smtp::dialogue::Dialogue;
use std::io::{self, Write};

/// Maximum number of lines of a message that are shown. Of a longer message, only the number of
/// lines is shown.
const MAX_LINES: u64 = 200;

#[derive(Debug)]
pub(crate) struct DialoguePrinter {
    dialogue: Dialogue,
    /// Lines of the current step, which are printed together.
    shown: String,
}

impl DialoguePrinter {
    pub(crate) fn new() -> Self {
        Self { dialogue: Dialogue::new(MAX_LINES), shown: String::new() }
    }

    pub(crate) fn event(&mut self, text: &str) {
        Dialogue::event(text, &mut self.shown);
        self.print();
    }

    pub(crate) fn tls_established(&mut self, handshake: &Handshake) {
        self.dialogue.tls_started(&handshake.version, &handshake.cipher, &mut self.shown);
        self.print();
    }

    pub(crate) fn sent(&mut self, octets: &[u8]) {
        self.dialogue.client(octets, &mut self.shown);
        self.print();
    }

    pub(crate) fn received(&mut self, reply: &ReceivedReply<'_>) {
        self.dialogue.reply(reply, &mut self.shown);
        self.print();
    }

    fn print(&mut self) {
        // Ignore the error: if standard output is closed, the run continues.
        let _ = io::stdout().lock().write_all(self.shown.as_bytes());
        self.shown.clear();
    }
}
