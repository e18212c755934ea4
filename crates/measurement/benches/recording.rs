//! Criterion micro-benchmarks of the work that observing a message adds to SMTP: the trace line, the checksum of the
//! body, a time in a histogram, and a unit (message-recipient pair) in a ledger. To run them: `cargo bench -p
//! mailrun-measurement --bench recording`.
use criterion::{BatchSize, BenchmarkGroup, BenchmarkId, Criterion, Throughput, measurement::WallTime};
use mailrun_measurement::{ClockId, Latencies, Ledger, RunId, Trace, TraceReader, TraceResult, trace};
use std::hint::black_box;
use std::time::Duration;

const BODY_BYTES: [usize; 3] = [256, 4096, 1 << 20];
/// Number of latencies that are recorded, or units that are marked, in each iteration.
const BATCH: u64 = 1000;

fn main() {
    let mut criterion = Criterion::default().configure_from_args();
    bench_trace(&mut criterion);
    bench_recognition(&mut criterion);
    bench_histogram(&mut criterion);
    bench_ledger(&mut criterion);
    criterion.final_summary();
}

fn measure<T>(
    group: &mut BenchmarkGroup<'_, WallTime>,
    name: impl ToString,
    throughput: Throughput,
    mut iteration: impl FnMut() -> T,
) {
    group.throughput(throughput);
    group.bench_function(BenchmarkId::from_parameter(name.to_string()), |bencher| {
        bencher.iter(|| black_box(iteration()));
    });
}

fn trace(body: &[u8]) -> Trace {
    let clock = ClockId::monotonic("boot");
    Trace {
        run: RunId([1; 16]),
        sequence: 1,
        zero: trace::ZeroPhase::default(),
        numbering: trace::RecipientNumbering::TAG,
        created: Duration::ZERO,
        clock,
        checksum: trace::checksum(body),
    }
}

/// Returns a message as it arrives from a relay, which adds a `Received` field before the trace line.
fn message(body: &[u8]) -> Vec<u8> {
    let mut line = [0; Trace::HEADER_BYTES];
    trace(body).write(&mut line);
    let received =
        b"Received: from client.example.com ([192.0.2.1]) by mx.example.com; Mon, 23 Nov 2026 01:00:00 +0000\r\n";
    [received, line.as_slice(), b"From: <a@example.com>\r\nTo: <b@example.com>\r\n\r\n", body].concat()
}

/// Measures writing a trace line, patching it for another message, and parsing it.
fn bench_trace(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("trace line");
    let one = || Throughput::Elements(1);
    let trace = trace(b"hello\r\n");
    let mut line = [0; Trace::HEADER_BYTES];
    measure(&mut group, "write", one(), || black_box(&trace).write(black_box(&mut line)));
    let zero = trace::ZeroPhase::default();
    measure(&mut group, "patch", one(), || Trace::patch(black_box(&mut line), zero, 7, Duration::from_nanos(7)));
    measure(&mut group, "parse", one(), || Trace::parse(black_box(&line)).is_some());
    group.finish();
}

/// Measures how the sink finds the trace in a message and checks the body.
fn bench_recognition(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("recognise and check a body of");
    for bytes in BODY_BYTES {
        let message = message(&vec![b'x'; bytes]);
        let mut reader = TraceReader::default();
        measure(&mut group, format!("{bytes} B"), Throughput::BytesDecimal(message.len() as u64), || {
            message.chunks(256 * 1024).for_each(|block| reader.receive(black_box(block)));
            assert!(matches!(reader.finish(), TraceResult::Intact(_)));
        });
    }
    group.finish();
}

fn bench_histogram(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("histogram");
    let mut latencies = Latencies::default();
    measure(&mut group, "record", Throughput::Elements(BATCH), || {
        // Record times from 0.1 ms to 1.1 s, because most latencies are in this range.
        (0..BATCH).for_each(|number| latencies.record(Duration::from_micros(100 + number * 1_100)));
    });
    measure(&mut group, "summary", Throughput::Elements(1), || latencies.summary());
    group.finish();
}

/// Measures marking units in a ledger. The units come out of order, as if from many sessions.
fn bench_ledger(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("ledger");
    group.throughput(Throughput::Elements(BATCH));
    group.bench_function("mark", |bencher| {
        bencher.iter_batched_ref(
            Ledger::default,
            |ledger| (0..BATCH).for_each(|number| _ = black_box(ledger.mark(number * 37 % BATCH, 0))),
            BatchSize::SmallInput,
        );
    });
    group.finish();
}
