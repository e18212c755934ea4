//! Measures the speed, in GB/s, at which a receiver reads a message from the wire: it finds the end of data, removes
//! dot-stuffing, and checks line endings and line lengths.
#![allow(clippy::print_stdout, reason = "a benchmark's output is its result")]
use mailrun_smtp::data::{DataPiece, DataReader, END_OF_DATA, stuff};
use std::hint::black_box;
use std::time::Instant;

const MESSAGE_BYTES: usize = 10 << 20;
const ROUNDS: usize = 50;

fn main() {
    println!(
        "{:<34} {:>10} {:>10} {:>10}   of {ROUNDS} rounds, GB/s",
        "message in blocks of 256 KB", "min", "median", "max"
    );
    for (name, line) in [("lines of 80 octets", 80), ("lines of 1000 octets", 1000), ("empty lines", 2)] {
        report(name, &message(line, b'X'));
    }
    report("every line of 80 begins with a dot", &message(80, b'.'));
}

fn message(line: usize, first: u8) -> Vec<u8> {
    let text = vec![b'X'; line.saturating_sub(3)];
    let first = if line > 2 { vec![first] } else { Vec::new() };
    let line = [first, text, b"\r\n".to_vec()].concat();
    let message: Vec<u8> = line.iter().copied().cycle().take(MESSAGE_BYTES / line.len() * line.len()).collect();
    let mut wire = Vec::new();
    stuff(&message, &mut wire);
    wire.extend_from_slice(END_OF_DATA);
    wire
}

fn report(name: &str, wire: &[u8]) {
    let mut rates: Vec<f64> = (0..ROUNDS).map(|_| wire.len() as f64 / read(wire) / 1e9).collect();
    rates.sort_by(f64::total_cmp);
    println!("{name:<34} {:>10.2} {:>10.2} {:>10.2}", rates[0], rates[ROUNDS / 2], rates[ROUNDS - 1]);
}

fn read(wire: &[u8]) -> f64 {
    let began = Instant::now();
    let mut reader = DataReader::new(1000);
    let mut is_ended = false;
    for block in wire.chunks(256 * 1024) {
        let mut input = block;
        while let Some(piece) = reader.next(&mut input) {
            is_ended |= matches!(black_box(piece), DataPiece::End);
        }
    }
    assert!(is_ended && reader.fault().is_none());
    began.elapsed().as_secs_f64()
}
