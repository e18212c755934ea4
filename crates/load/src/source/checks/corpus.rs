//! Checks the readers of a corpus and of `--file` with arbitrary input. Unless the reader refuses the input, it must
//! find the same length and checksum for each message as a receiver of the message. The last octet of the input sets
//! the memory limit of the reader.
use crate::source::corpus::{self, Corpus, CorpusMessage, CorpusOptions, InvalidMessagePolicy};
use mailrun_smtp::data::{DataPiece, DataReader};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

/// File into which each check writes its input. Each process has a file of its own, in memory if there is `/dev/shm`.
static PLACE: LazyLock<PathBuf> = LazyLock::new(|| {
    let memory = Path::new("/dev/shm");
    let directory = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
    directory.join(format!("mailrun-fuzz-{}.eml", std::process::id()))
});

/// Returns the message as a receiver reads it, without dot-stuffing and end of data.
pub(in crate::source) fn received(letter: &CorpusMessage) -> Vec<u8> {
    let wire = [letter.headers.as_slice(), &letter.body].concat();
    let mut reader = DataReader::new(1_000);
    let mut input = wire.as_slice();
    let mut content = Vec::new();
    loop {
        match reader.next(&mut input) {
            Some(DataPiece::Content(octets)) => content.extend_from_slice(octets),
            Some(DataPiece::End) => break,
            None => panic!("no end of data: {}", wire.escape_ascii()),
        }
    }
    assert!(input.is_empty() && reader.fault().is_none(), "{}", wire.escape_ascii());
    content
}

fn check_corpus(corpus: &Corpus, limit_bytes: u64) {
    assert!(!corpus.messages.is_empty());
    let held: usize = corpus.messages.iter().map(|letter| letter.headers.len() + letter.body.len()).sum();
    // The content may exceed the limit by the three bytes that mark the end of data of the last message.
    assert!(held as u64 <= limit_bytes + 3, "{held} of {limit_bytes}");
    for letter in &corpus.messages {
        let content = received(letter);
        assert_eq!(content.len() as u64, letter.bytes);
        assert_eq!(letter.is_eight_bit, !content.is_ascii());
        let body = letter.headers.len()
            - letter.headers.split(|octet| *octet == b'\n').filter(|line| line.starts_with(b".")).count();
        assert_eq!(mailrun_measurement::trace::checksum(&content[body..]), letter.checksum);
    }
}

pub fn check(data: &[u8]) {
    let Some((&choice, text)) = data.split_last() else { return };
    fs::write(&*PLACE, text).expect("there is room for it");
    let limit_bytes = if choice & 1 == 0 { 1 << 20 } else { 64 };
    let single = corpus::read_file(&PLACE);
    let mut skipping = None;
    for unfit in [InvalidMessagePolicy::Skip, InvalidMessagePolicy::Reject] {
        let options = CorpusOptions { path: PLACE.clone(), limit_bytes, invalid_messages: unfit };
        match (corpus::read(&options), unfit) {
            (Ok(corpus), InvalidMessagePolicy::Skip) => {
                check_corpus(&corpus, limit_bytes);
                skipping = Some(corpus);
            }
            (Ok(corpus), InvalidMessagePolicy::Reject) => {
                let skipping = skipping.as_ref().expect("who bears the unfit reads what is fit");
                assert_eq!((corpus.skipped, skipping.skipped, &corpus.messages), (0, 0, &skipping.messages));
                match &single {
                    Ok(message) => assert_eq!((corpus.kind, &corpus.messages[0]), ("message", message)),
                    Err(error) => assert!(corpus.kind == "mbox" && error.to_string().starts_with("--file")),
                }
            }
            (Err(error), _) => assert!(error.to_string().starts_with("--corpus")),
        }
    }
    let _ = fs::remove_file(&*PLACE);
}
