//! Notices to senders: bounces, delays and successes (RFC 3464, RFC 3461), and cases without a notice.
use crate::party::{Sink, low_port, mailrun, peer, run, wait_until};
use crate::recorder::{Listen, Recorder, Script};
use crate::relay::{Den, Kept, QUICK, Relay, all_to, await_kept, expect, introduced, kept, submit};
use crate::secured::Files;
use mail_parser::{MessageParser, MimeHeaders};
use std::os::unix::fs::FileExt;

/// A sink that stands for the senders' mail server. It keeps the notices that arrive there.
struct Home {
    sink: Sink,
    dump: String,
    _files: Files,
}

impl Home {
    fn open() -> Self {
        let files = Files::new();
        let dump = files.path("dump");
        Self { sink: Sink::start(&["--dump-file", &dump]), dump, _files: files }
    }

    /// A relay that sends mail for `far.example` to `far`, and all other mail to this sink.
    fn relay(&self, far: &str, text: &str) -> Den {
        let route = format!("[[route]]\nto = \"far.example\"\nsmtp = \"{far}\"\n");
        Den::new(&format!("{text}{route}{}", all_to(&self.sink.address())))
    }

    fn mail(&self, count: usize) -> Vec<Kept> {
        await_kept(&self.dump, count)
    }
}

const MESSAGE: &str = "From: me <a@b.example>\r\nSubject: the original\r\n\r\nits text\r\n";

/// Submits a message for `far.example` with these parameters of MAIL and RCPT.
fn send(relay: &Relay, mail: &str, rcpt: &str) {
    let from = format!("<sender@b.example>{mail}");
    let to = format!("<to@far.example>{rcpt}");
    let reply = submit(&mut introduced(relay), &from, &[&to], MESSAGE);
    assert!(reply.starts_with("250 2.0.0"), "{reply}");
}

/// Uses an independent parser to check what all notices have in common. Returns the fields of the report.
fn report(notice: &Kept, returned: &str) -> String {
    assert!(notice.sender.is_empty() && notice.recipients == ["sender@b.example"], "{notice:?}");
    assert!(notice.octets.iter().all(|byte| *byte != 0), "no NUL");
    let message = MessageParser::default().parse(&notice.octets).unwrap();
    let kind = message.content_type().unwrap();
    assert_eq!((kind.ctype(), kind.subtype()), ("multipart", Some("report")), "{}", notice.text());
    assert_eq!(kind.attribute("report-type"), Some("delivery-status"));
    assert_eq!(message.header_raw("Auto-Submitted").map(str::trim), Some("auto-replied"));
    assert!(message.message_id().is_some() && message.date().is_some() && message.from().is_some());
    assert_eq!(message.to().unwrap().first().unwrap().address(), Some("sender@b.example"));
    let parts: Vec<_> = message.parts.iter().filter_map(|part| part.content_type()).collect();
    let kinds: Vec<String> =
        parts.iter().map(|kind| format!("{}/{}", kind.ctype(), kind.subtype().unwrap_or_default())).collect();
    assert_eq!(kinds, ["multipart/report", "text/plain", "message/delivery-status", returned], "{}", notice.text());
    let text = notice.text();
    let from = text.find("Content-Type: message/delivery-status").unwrap();
    let to = text.find(&format!("Content-Type: {returned}")).unwrap();
    text[from..to].to_owned()
}

fn says(report: &str, fields: &[&str]) {
    for field in fields {
        assert!(report.contains(&format!("\r\n{field}")), "{field}: {report}");
    }
}

#[test]
fn a_refusal_is_told_to_the_sender() {
    let home = Home::open();
    for (rule, code) in [("rcpt", "5.7.7"), (".", "5.7.8"), ("mail", "5.7.9")] {
        let far = Sink::start(&["--fault", &format!("{rule}: hard reject \"554 {code} Not here\"")]);
        let den = home.relay(&far.address(), "");
        let relay = den.open();
        let before = kept(&home.dump).len();
        send(&relay, "", "");
        let bounce = home.mail(before + 1).pop().unwrap();
        let report = report(&bounce, "message/rfc822");
        says(&report, &["Reporting-MTA: dns; relay.example", "Final-Recipient: rfc822; to@far.example"]);
        says(&report, &["Action: failed", &format!("Status: {code}"), "Diagnostic-Code: smtp; 554"]);
        says(&report, &["Last-Attempt-Date: "]);
        assert!(bounce.text().contains("its text") && report.contains("Not here"), "{}", bounce.text());
        relay.stop();
        assert_eq!(far.took().messages, 0);
    }
}

#[test]
fn a_reason_of_the_relay_itself_is_not_reported_as_the_reply_of_a_server() {
    let home = Home::open();
    let route = format!("[[route]]\nto = \"[8.8.8.8]\"\nmx = true\n{}", all_to(&home.sink.address()));
    let den = Den::new(&route);
    let relay = den.open();
    let reply = submit(&mut introduced(&relay), "<sender@b.example>", &["<to@[8.8.8.8]>"], MESSAGE);
    assert!(reply.starts_with("250 2.0.0"), "{reply}");
    let bounce = home.mail(1).pop().unwrap();
    let report = report(&bounce, "message/rfc822");
    says(&report, &["Action: failed", "Status: 5.7.1", "Diagnostic-Code: x-mailrun; 8.8.8.8 is a public address"]);
    assert!(!report.contains("Remote-MTA") && !bounce.text().contains(" said: "), "{}", bounce.text());
    relay.stop();
}

#[test]
fn python_reads_a_bounce() {
    let Some(python) = peer("python3") else { return };
    let home = Home::open();
    let far = Sink::start(&["--fault", "rcpt: hard reject"]);
    let den = home.relay(&far.address(), "");
    let relay = den.open();
    send(&relay, " RET=FULL ENVID=my+2Bid", " ORCPT=rfc822;first+2Bone@c.example");
    let path = den.files.keep("bounce.eml", &home.mail(1)[0].text());
    let script = "
import sys, email, email.policy
m = email.message_from_binary_file(open(sys.argv[1], 'rb'), policy=email.policy.default)
assert not m.defects and m.get_content_type() == 'multipart/report', m.defects
text, status, original = m.iter_parts()
of_message, of_recipient = status.iter_parts() if status.is_multipart() else status.get_payload()
print(of_message['Original-Envelope-Id'], of_recipient['Original-Recipient'], of_recipient['Action'])
print(original.get_content()['Subject'])
";
    let ended = run(&python, &["-c", script, &path]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert_eq!(ended.out, "my+id rfc822; first+one@c.example failed\nthe original\n");
    relay.stop();
}

#[test]
fn nobody_is_told_where_nobody_wants_to_hear() {
    let home = Home::open();
    let far = Sink::start(&["--fault", "rcpt: hard reject", "--fault", "rcpt from <>: hard reject"]);
    let den = home.relay(&far.address(), "");
    let relay = den.open();
    let mut wire = introduced(&relay);
    for (from, to) in [
        ("<>", "<to@far.example>"),
        ("<sender@b.example>", "<to@far.example> NOTIFY=NEVER"),
        ("<sender@b.example>", "<to@far.example> NOTIFY=SUCCESS"),
        ("<sender@b.example>", "<to@far.example> NOTIFY=SUCCESS,DELAY"),
        // The sender is in far.example as well, so its bounce is refused too. After that, no other notice may follow.
        ("<sender@far.example>", "<to@far.example>"),
    ] {
        assert!(submit(&mut wire, from, &[to], MESSAGE).starts_with("250 2.0.0"));
    }
    send(&relay, "", " NOTIFY=FAILURE");
    let notices = home.mail(1);
    says(&report(&notices[0], "message/rfc822"), &["Action: failed"]);
    relay.stop();
    // No message may be left, so a restarted relay must send nothing.
    let relay = den.open();
    expect(&mut relay.greeted(), "NOOP", "250");
    relay.stop();
    assert_eq!(kept(&home.dump).len(), 1);
}

#[test]
fn a_success_is_told_by_whoever_is_the_last_to_know_how() {
    let home = Home::open();
    let place = tempfile::tempdir().unwrap();
    // If the next hop supports DSN, the relay passes the request on and sends no notice.
    let script = Script::default().say("EHLO", 0, "250-peer.example\r\n250-PIPELINING\r\n250 DSN");
    let knows = Recorder::start(Listen::V4, script, place.path());
    let den = home.relay(&format!("127.0.0.1:{}", knows.port), "");
    let relay = den.open();
    send(&relay, " RET=HDRS ENVID=an+20id", " NOTIFY=SUCCESS,FAILURE ORCPT=rfc822;first+2Bone@c.example");
    wait_until("the message at the next hop", || (knows.times(".") == 1).then_some(()));
    relay.stop();
    let heard = knows.finish();
    let text = String::from_utf8_lossy(&heard[0].octets).into_owned();
    assert!(text.contains(" RET=HDRS") && text.contains(" ENVID=an+20id"), "{text}");
    assert!(text.contains("NOTIFY=SUCCESS,FAILURE ORCPT=rfc822;first+2Bone@c.example\r\n"), "{text}");
    assert_eq!(kept(&home.dump).len(), 0, "the next hop tells");
    // If the next hop does not support DSN, the relay itself reports that it has relayed the message.
    let script = Script::default().say("EHLO", 0, "250-peer.example\r\n250 PIPELINING");
    let simple = Recorder::start(Listen::V4, script, place.path());
    let den = home.relay(&format!("127.0.0.1:{}", simple.port), "");
    let relay = den.open();
    send(&relay, " RET=HDRS ENVID=an+20id", " NOTIFY=SUCCESS ORCPT=rfc822;first+2Bone@c.example");
    let report = report(&home.mail(1)[0], "text/rfc822-headers");
    says(&report, &["Original-Envelope-Id: an id", "Original-Recipient: rfc822; first+one@c.example"]);
    says(&report, &["Action: relayed", "Status: 2."]);
    relay.stop();
    let text = String::from_utf8_lossy(&simple.finish()[0].octets).into_owned();
    assert!(!text.contains("NOTIFY") && !text.contains("ENVID") && !text.contains("ORCPT"), "{text}");
}

#[test]
fn an_original_recipient_in_utf8_is_passed_on_in_the_form_that_the_next_hop_reads() {
    let home = Home::open();
    let place = tempfile::tempdir().unwrap();
    // According to RFC 6533 §3, the relay passes ORCPT on unchanged if the next hop offers SMTPUTF8, and in ASCII
    // otherwise.
    let smtp_utf8 = "250-SMTPUTF8\r\n250-8BITMIME\r\n";
    for (offer, original, passed) in [
        (smtp_utf8, "utf-8;böb@b.example", "utf-8;böb@b.example"),
        ("", "utf-8;böb@b.example", "utf-8;b\\x{F6}b@b.example"),
        // Postfix 3.7 sends this form.
        ("", "rfc822;b+C3+B6b@b.example", "rfc822;b+C3+B6b@b.example"),
    ] {
        let script = Script::default().say("EHLO", 0, &format!("250-peer.example\r\n{offer}250 DSN"));
        let hop = Recorder::start(Listen::V4, script, place.path());
        let den = home.relay(&format!("127.0.0.1:{}", hop.port), "");
        let relay = den.open();
        send(&relay, " SMTPUTF8", &format!(" ORCPT={original}"));
        wait_until("the message at the next hop", || (hop.times(".") == 1).then_some(()));
        relay.stop();
        let heard = String::from_utf8(hop.finish()[0].octets.clone()).unwrap();
        assert!(heard.contains(&format!("RCPT TO:<to@far.example> ORCPT={passed}\r\n")), "{heard}");
    }
    // The notice must show the original recipient in ASCII.
    let far = Sink::start(&["--fault", "rcpt: hard reject"]);
    let den = home.relay(&far.address(), "");
    let relay = den.open();
    send(&relay, " SMTPUTF8", " ORCPT=utf-8;böb@b.example");
    says(&report(&home.mail(1)[0], "message/rfc822"), &["Original-Recipient: utf-8; b\\x{F6}b@b.example"]);
    relay.stop();
}

#[test]
fn a_success_in_a_mailbox_is_told() {
    let home = Home::open();
    let text = "local.domains = [\"own.example\"]\nlocal.users = \"boxes\"\nlocal.maildir = \"mail/{user}\"\n";
    let files = Files::new();
    files.keep("boxes", "ann\npostmaster\n");
    let den = Den::with(files, &format!("{text}{}", all_to(&home.sink.address())));
    let relay = den.open();
    let mut wire = introduced(&relay);
    let to = ["<ann@own.example> NOTIFY=SUCCESS"];
    assert!(submit(&mut wire, "<sender@b.example> RET=FULL", &to, MESSAGE).starts_with("250 2.0.0"));
    let report = report(&home.mail(1)[0], "text/rfc822-headers");
    says(&report, &["Final-Recipient: rfc822; ann@own.example", "Action: delivered", "Status: 2."]);
    relay.stop();
}

#[test]
fn what_cannot_be_delivered_in_time_comes_back() {
    let home = Home::open();
    let dead = format!("127.0.0.1:{}", low_port());
    let busy = Sink::start(&["--fault", "rcpt: soft reject \"450 4.2.2 The box is full\""]);
    for (far, why) in [(dead, "refused"), (busy.address(), "The box is full")] {
        let text = format!("{QUICK}retry.expiry = \"2s\"\nretry.delay_notice = \"never\"\n");
        let den = home.relay(&far, &text);
        let relay = den.open();
        let before = kept(&home.dump).len();
        send(&relay, "", "");
        let bounce = home.mail(before + 1).pop().unwrap();
        let report = report(&bounce, "message/rfc822");
        says(&report, &["Final-Recipient: rfc822; to@far.example", "Action: failed", "Status: 5.4.7"]);
        assert!(report.contains(why), "{why}: {report}");
        relay.stop();
    }
}

/// In each segment of the spool, flips a bit of the first byte of the first `mark`.
fn damage(den: &Den, mark: &[u8]) {
    let files = std::fs::read_dir(den.path("spool")).unwrap().flatten().map(|file| file.path());
    for path in files.filter(|path| path.to_string_lossy().contains("segment-")) {
        let octets = std::fs::read(&path).unwrap();
        let Some(at) = octets.windows(mark.len()).position(|window| window == mark) else { continue };
        let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
        file.write_all_at(&[octets[at] ^ 1], at as u64).unwrap();
    }
}

/// Submits a message that is deferred until it expires, and damages it in the spool at `mark`.
fn spoiled(home: &Home, mark: &[u8]) -> (Den, Relay, Sink) {
    let busy = Sink::start(&["--fault", "rcpt: soft reject \"450 4.2.2 The box is full\""]);
    let text = format!("{QUICK}retry.expiry = \"15s\"\nretry.delay_notice = \"never\"\n");
    let den = home.relay(&busy.address(), &text);
    let relay = den.open();
    send(&relay, "", "");
    wait_until("the first try", || (busy.ask("/status")["rules"][0]["acted"].as_u64() > Some(0)).then_some(()));
    // Repeat the damage, because the relay may still be writing the message's state after its first try, which would
    // restore the damaged bytes.
    wait_until("a read that fails", || {
        damage(&den, mark);
        relay.process.complained().contains("cannot be read from the spool").then_some(())
    });
    (den, relay, busy)
}

#[test]
fn a_message_that_cannot_be_read_is_told_of_from_its_envelope_when_it_expires() {
    let home = Home::open();
    let (_den, relay, _busy) = spoiled(&home, b"its text");
    let bounce = home.mail(1).pop().unwrap();
    assert!(bounce.sender.is_empty() && bounce.recipients == ["sender@b.example"], "{bounce:?}");
    let text = bounce.text();
    says(&text, &["Final-Recipient: rfc822; to@far.example", "Action: failed", "Status: 5.4.7"]);
    assert!(text.contains("Your message cannot be returned") && !text.contains("text/rfc822-headers"), "{text}");
    let log = relay.process.complained();
    assert!(
        log.contains("is held; its sender is notified when it expires") && log.contains("notified without it"),
        "{log}"
    );
    relay.stop();
}

#[test]
fn a_message_whose_envelope_cannot_be_read_either_is_held_beyond_its_time() {
    let home = Home::open();
    // Damage the sender's address. Only the envelope contains it, so the relay can no longer notify the sender.
    let (den, relay, _busy) = spoiled(&home, b"sender@b.example");
    wait_until("the end of its time", || relay.process.complained().contains("cannot be notified").then_some(()));
    let queue = |words: &[&str]| mailrun(&[&["queue", "--spool", &den.path("spool")], words].concat());
    let listed = queue(&["list", "--state", "held"]);
    assert_eq!((listed.code, listed.out.lines().count()), (Some(0), 2), "{listed:?}");
    let removed = queue(&["remove", "all"]);
    assert_eq!(removed.out, "1 message removed\n", "{removed:?}");
    relay.stop();
    assert_eq!(kept(&home.dump).len(), 0);
}

#[test]
fn a_delay_is_told_once_and_only_to_who_wants_to_know() {
    let home = Home::open();
    let busy = Sink::start(&["--fault", "rcpt: soft reject \"450 4.2.2 The box is full\""]);
    let text = format!("{QUICK}retry.expiry = \"6s\"\nretry.delay_notice = \"1s\"\n");
    let den = home.relay(&busy.address(), &text);
    let relay = den.open();
    send(&relay, "", " NOTIFY=NEVER");
    send(&relay, "", "");
    let late = &home.mail(1)[0];
    let first = report(late, "text/rfc822-headers");
    says(&first, &["Action: delayed", "Status: 4.", "Will-Retry-Until: "]);
    assert!(!first.contains("Last-Attempt-Date"), "the notice follows no attempt: {first}");
    let all = home.mail(2);
    says(&report(&all[1], "message/rfc822"), &["Action: failed", "Status: 5.4.7"]);
    relay.stop();
    assert_eq!(kept(&home.dump).len(), 2);
}

#[test]
fn a_bounce_survives_a_restart() {
    let home = format!("127.0.0.1:{}", low_port());
    let far = Sink::start(&["--fault", "rcpt: hard reject \"554 5.7.7 Not here\""]);
    let route = format!("[[route]]\nto = \"far.example\"\nsmtp = \"{}\"\n", far.address());
    let den = Den::new(&format!("{QUICK}{route}{}", all_to(&home)));
    let relay = den.open();
    send(&relay, "", "");
    wait_until("the refusal", || (far.ask("/status")["rules"][0]["acted"] == 1).then_some(()));
    relay.kill();
    let relay = den.open();
    let files = Files::new();
    let dump = files.path("dump");
    let sink = Sink::start_at(&home, &["--dump-file", &dump]);
    says(&report(&await_kept(&dump, 1)[0], "message/rfc822"), &["Action: failed", "Status: 5.7.7"]);
    relay.stop();
    // The relay may have been killed after it sent the bounce but before it recorded that. In that case it sends the
    // bounce again after the restart.
    let bounces = sink.took().messages;
    assert!((1..=2).contains(&bounces), "{bounces} bounces");
}

/// A recording server without 8BITMIME.
fn seven_bit_server(place: &std::path::Path) -> Recorder {
    Recorder::start(Listen::V4, Script::default().say("EHLO", 0, "250-old.example\r\n250 PIPELINING"), place)
}

#[test]
fn a_bounce_of_eight_bits_comes_back_over_seven() {
    let place = tempfile::tempdir().unwrap();
    let home = seven_bit_server(place.path());
    let far = Sink::start(&["--fault", "rcpt: hard reject \"550 5.1.1 Niemand hei\u{df}t hier so\""]);
    let route = format!("[[route]]\nto = \"far.example\"\nsmtp = \"{}\"\n", far.address());
    let den = Den::new(&format!("{route}{}", all_to(&format!("127.0.0.1:{}", home.port))));
    let relay = den.open();
    let mut wire = introduced(&relay);
    let signed = "DKIM-Signature: v=1\r\n";
    for (signature, utf8) in [("", ""), (signed, ""), ("", " SMTPUTF8")] {
        let message = format!("{signature}Subject: x\r\n\r\nviele Gr\u{fc}\u{df}e\r\n");
        let from = format!("<sender@b.example> BODY=8BITMIME{utf8}");
        let to = if utf8.is_empty() { "<to@far.example>" } else { "<j\u{f6}rg@far.example>" };
        assert!(submit(&mut wire, &from, &[to], &message).starts_with("250 2.0.0"));
    }
    wait_until("three bounces", || (home.times(".") == 3).then_some(()));
    relay.stop();
    let heard: Vec<u8> = home.finish().into_iter().flat_map(|heard| heard.octets).collect();
    assert!(heard.is_ascii(), "{}", heard.escape_ascii());
    let heard = String::from_utf8(heard).unwrap();
    assert!(!heard.contains("BODY=") && !heard.contains("SMTPUTF8"), "{heard}");
    assert_eq!(heard.matches("Content-Type: message/delivery-status").count(), 2, "{heard}");
    assert_eq!(heard.matches("Content-Type: message/global-delivery-status").count(), 1, "{heard}");
    assert_eq!(heard.matches("Content-Type: text/rfc822-headers").count(), 1, "what is signed stays as it is: {heard}");
}

/// A relay whose mail for `far.example` is refused. `dsn` has its settings for notices.
fn refusing(dsn: &str, files: Files, home: &Home) -> (Den, Sink) {
    // Two rules are needed, because a rule applies to notices only if it says `from <>`.
    let refusals = ["rcpt", "rcpt from <>"].map(|place| format!("{place}: hard reject \"554 5.7.7 Not here\""));
    let far = Sink::start(&["--fault", &refusals[0], "--fault", &refusals[1]]);
    let route = format!("[[route]]\nto = \"far.example\"\nsmtp = \"{}\"\n", far.address());
    (Den::with(files, &format!("{dsn}{route}{}", all_to(&home.sink.address()))), far)
}

/// Number of recipients that a server of `refusing` has refused.
fn refused(far: &Sink) -> u64 {
    let rules = far.ask("/status")["rules"].clone();
    rules.as_array().unwrap().iter().map(|rule| rule["acted"].as_u64().unwrap()).sum()
}

#[test]
fn failures_go_where_they_are_wanted() {
    let home = Home::open();
    let (den, _far) =
        refusing("dsn.failures = \"postmaster\"\ndsn.postmaster = \"pm@b.example\"\n", Files::new(), &home);
    let relay = den.open();
    send(&relay, "", " NOTIFY=NEVER");
    send(&relay, "", "");
    let bounce = &home.mail(1)[0];
    assert!(bounce.sender.is_empty() && bounce.recipients == ["pm@b.example"], "{bounce:?}");
    assert!(bounce.text().contains("A message from <sender@b.example>"), "{}", bounce.text());
    assert!(bounce.text().contains("Action: failed") && bounce.text().contains("To: <pm@b.example>"));
    relay.stop();

    let files = Files::new();
    files.keep("boxes", "ann\npostmaster\n");
    let local = "local.domains = [\"own.example\"]\nlocal.users = \"boxes\"\nlocal.maildir = \"mail/{user}\"\n";
    let (den, _far) = refusing(&format!("dsn.failures = \"maildir:failures\"\n{local}"), files, &home);
    let relay = den.open();
    // The sender must still get the notice of success for the other recipient.
    let to = ["<to@far.example>", "<ann@own.example> NOTIFY=SUCCESS"];
    let mut wire = introduced(&relay);
    assert!(submit(&mut wire, "<sender@b.example>", &to, MESSAGE).starts_with("250 2.0.0"));
    let filed = wait_until("the notice in the Maildir", || crate::relay::mailbox(&den.path("failures")).pop());
    assert!(filed.contains("Delivered-To: sender@b.example\n") && filed.contains("Return-Path: <>\n"), "{filed}");
    assert!(filed.contains("Final-Recipient: rfc822; to@far.example\n") && filed.contains("Action: failed"), "{filed}");
    assert!(!filed.contains("ann@own.example"), "{filed}");
    let told = &home.mail(2)[1];
    assert!(told.sender.is_empty() && told.recipients == ["sender@b.example"], "{told:?}");
    assert!(told.text().contains("Action: delivered") && !told.text().contains("to@far.example"), "{}", told.text());
    relay.stop();
    assert_eq!(kept(&home.dump).len(), 2);
}

#[test]
fn a_maildir_that_takes_no_failures_does_not_hold_up_other_notices() {
    let home = Home::open();
    let files = Files::new();
    files.keep("boxes", "ann\npostmaster\n");
    files.keep("failures", "no directory");
    let local = "local.domains = [\"own.example\"]\nlocal.users = \"boxes\"\nlocal.maildir = \"mail/{user}\"\n";
    let dsn = format!("{QUICK}workers = 1\ndsn.failures = \"maildir:failures\"\n{local}");
    let (den, _far) = refusing(&dsn, files, &home);
    let relay = den.open();
    // The relay writes only a limited number of notices at the same time. First send 40 messages that fail, more than
    // this limit. Then send a message that is delivered. The notice of its success must not wait for the other notices.
    let mut wire = introduced(&relay);
    for _ in 0..40 {
        assert!(submit(&mut wire, "<sender@b.example>", &["<to@far.example>"], MESSAGE).starts_with("250 2.0.0"));
    }
    wait_until("all failures", || (relay.process.complained().matches("cannot be stored").count() >= 40).then_some(()));
    let to = ["<ann@own.example> NOTIFY=SUCCESS"];
    assert!(submit(&mut wire, "<sender@b.example>", &to, MESSAGE).starts_with("250 2.0.0"));
    assert!(home.mail(1)[0].text().contains("Action: delivered"));
    std::fs::remove_file(den.path("failures")).unwrap();
    wait_until("the failures", || (crate::relay::mailbox(&den.path("failures")).len() == 40).then_some(()));
    relay.stop();
    assert_eq!(crate::relay::mailbox(&den.path("failures")).len(), 40, "each failure is reported once");
}

#[test]
fn a_notice_that_cannot_be_delivered_is_not_forgotten_in_silence() {
    let home = Home::open();
    let postmaster = "dsn.postmaster = \"pm@b.example\"\n";
    for (double, told) in [("log", false), ("postmaster", true), ("maildir:double", false)] {
        let dsn = format!("dsn.double_bounces = \"{double}\"\n{postmaster}");
        let (den, far) = refusing(&dsn, Files::new(), &home);
        let relay = den.open();
        let before = kept(&home.dump).len();
        let mut wire = introduced(&relay);
        // The sender is in far.example as well, so its bounce is refused.
        assert!(submit(&mut wire, "<gone@far.example>", &["<to@far.example>"], MESSAGE).starts_with("250 2.0.0"));
        wait_until("both refusals", || (refused(&far) == 2).then_some(()));
        let log = wait_until("the warning", || {
            let log = relay.process.complained();
            log.contains("a notification could not be delivered").then_some(log)
        });
        let line = log.lines().find(|line| line.contains("a notification could not")).unwrap();
        assert!(line.contains("WARN") && line.contains("gone@far.example") && line.contains("Not here"), "{line}");
        if told {
            let notice = home.mail(before + 1).pop().unwrap();
            assert!(notice.sender.is_empty() && notice.recipients == ["pm@b.example"], "{notice:?}");
            let text = notice.text();
            assert!(
                text.contains("A notification, which") && text.contains("Final-Recipient: rfc822; gone@far.example")
            );
        } else if double != "log" {
            let filed = wait_until("the Maildir", || crate::relay::mailbox(&den.path("double")).pop());
            assert!(filed.contains("Final-Recipient: rfc822; gone@far.example"), "{filed}");
        }
        relay.stop();
        assert_eq!(kept(&home.dump).len(), before + usize::from(told));
    }
    // The postmaster is in far.example too, directly or by an alias, so the notice to the postmaster is also refused.
    // No further notice may follow.
    let local = "local.domains = [\"own.example\"]\nlocal.aliases = \"aliases\"\nlocal.users = \
                 \"none\"\nlocal.maildir = \"m/{user}\"\n";
    for postmaster in ["dsn.postmaster = \"pm@far.example\"\n", local] {
        let files = Files::new();
        files.keep("aliases", "postmaster: pm@far.example\n");
        files.keep("none", "\n");
        let (den, far) = refusing(&format!("dsn.double_bounces = \"postmaster\"\n{postmaster}"), files, &home);
        let relay = den.open();
        let mut wire = introduced(&relay);
        assert!(submit(&mut wire, "<gone@far.example>", &["<to@far.example>"], MESSAGE).starts_with("250 2.0.0"));
        wait_until("all three refusals", || (refused(&far) == 3).then_some(()));
        wait_until("two warnings", || {
            (relay.process.complained().matches("a notification could not be delivered").count() == 2).then_some(())
        });
        relay.stop();
        let relay = den.open();
        expect(&mut relay.greeted(), "NOOP", "250");
        relay.stop();
        assert_eq!(refused(&far), 3, "nothing is left to do");
    }
}

#[test]
fn successes_are_told_to_who_may_hear_of_them() {
    let home = Home::open();
    let local = "local.domains = [\"own.example\"]\nlocal.users = \"boxes\"\nlocal.maildir = \"mail/{user}\"\n";
    for (word, networks, is_told) in [
        ("everyone", "[\"10.0.0.0/8\"]", true),
        ("networks", "[\"10.0.0.0/8\"]", false),
        ("networks", "[\"127.0.0.0/8\"]", true),
        ("nobody", "[\"127.0.0.0/8\"]", false),
    ] {
        let files = Files::new();
        files.keep("boxes", "ann\npostmaster\n");
        let text = format!("networks = {networks}\ndsn.success = \"{word}\"\n{local}{}", all_to(&home.sink.address()));
        let den = Den::with(files, &text);
        let relay = den.open();
        let before = kept(&home.dump).len();
        let mut wire = introduced(&relay);
        let to = ["<ann@own.example> NOTIFY=SUCCESS,FAILURE"];
        assert!(submit(&mut wire, "<sender@b.example>", &to, MESSAGE).starts_with("250 2.0.0"));
        wait_until("the message in its mailbox", || crate::relay::mailbox(&den.path("mail/ann")).pop());
        if is_told {
            assert!(home.mail(before + 1).pop().unwrap().text().contains("Action: delivered"));
        }
        relay.stop();
        // Start the relay again, because it would then send any notice that is still due.
        let relay = den.open();
        expect(&mut relay.greeted(), "NOOP", "250");
        relay.stop();
        assert_eq!(kept(&home.dump).len(), before + usize::from(is_told), "{word} {networks}");
    }
}

#[test]
fn a_class_that_contradicts_the_reply_is_not_passed_on() {
    let home = Home::open();
    let far = Sink::start(&["--fault", "rcpt: hard reject \"552 4.2.2 The box is full\""]);
    let den = home.relay(&far.address(), "");
    let relay = den.open();
    send(&relay, "", "");
    let report = report(&home.mail(1)[0], "message/rfc822");
    says(&report, &["Action: failed", "Status: 5.0.0", "Remote-MTA: dns; [127.0.0.1]"]);
    says(&report, &["Diagnostic-Code: smtp; 552 4.2.2 The box is full"]);
    relay.stop();
}

#[test]
fn what_a_hostile_next_hop_says_makes_no_hostile_bounce() {
    for reply in [
        b"550 5.1.1 \x01\x7f\x1b[2J \xff\xfe\xc3\xa4 \t x\r\n".to_vec(),
        b"550-5.1.1 first\r\n550-5.1.1 .\r\n550 5.1.1 Final-Recipient: rfc822; other@x\r\n".to_vec(),
        [b"550 5.1.1 ".as_slice(), &[b'x'; 400], b"\r\n"].concat(),
        b"550 5.1.1 a\rb\x00c\r\n".to_vec(),
    ] {
        let home = Home::open();
        let place = tempfile::tempdir().unwrap();
        let far = Recorder::start(Listen::V4, Script::default().say_raw("RCPT", 0, &reply), place.path());
        let den = home.relay(
            &format!("127.0.0.1:{}", far.port),
            &format!("{QUICK}retry.expiry = \"3s\"\nretry.delay_notice = \"never\"\n"),
        );
        let relay = den.open();
        send(&relay, "", "");
        let bounce = &home.mail(1)[0];
        let report = report(bounce, "message/rfc822");
        says(&report, &["Final-Recipient: rfc822; to@far.example", "Action: failed", "Status: 5."]);
        assert_eq!(report.matches("\r\nFinal-Recipient:").count(), 1, "{report}");
        let lines: Vec<&[u8]> = bounce.octets.split_inclusive(|byte| *byte == b'\n').collect();
        assert!(lines.iter().all(|line| line.len() <= 1000 && line.ends_with(b"\r\n")), "{}", bounce.text());
        assert_eq!(bounce.octets.iter().filter(|byte| **byte == b'\r').count(), lines.len(), "no bare CR");
        assert!(bounce.octets.iter().all(|byte| *byte >= b' ' || b"\t\r\n".contains(byte)), "no control characters");
        relay.stop();
        far.finish();
    }
}
