//! Tests the files in deploy/grafana. promtool checks the alert rules, and a Prometheus that scrapes a probe answers
//! the queries of the dashboard.
use crate::action::documents;
use crate::manual::root;
use crate::party::{MAILRUN, Process, Sink, is_root, low_port, peer, run, skip, wait_until};
use crate::probe::Probe;
use crate::secured::Files;
use serde_json::Value;
use std::fmt::Write as _;
use std::fs;
use std::thread;
use std::time::Duration;

fn file(name: &str) -> String {
    root().join("deploy/grafana").join(name).to_str().unwrap().to_owned()
}

fn panels() -> Vec<Value> {
    let dashboard: Value = serde_json::from_str(&fs::read_to_string(file("dashboard.json")).unwrap()).unwrap();
    dashboard["panels"].as_array().unwrap().clone()
}

/// Queries of a panel, each with the text of its legend. Grafana's variables are replaced by values.
fn queries_of(panel: &Value) -> Vec<(String, String)> {
    let query = |target: &Value| {
        let query = target["expr"].as_str().unwrap().replace("$__rate_interval", "1m").replace("$route", ".*");
        assert!(!query.contains('$'), "{query}");
        (query, target["legendFormat"].as_str().unwrap().to_owned())
    };
    panel["targets"].as_array().unwrap().iter().map(query).collect()
}

/// The queries of all panels, each with the title of its panel.
fn queries() -> Vec<(String, String)> {
    let of = |panel: &Value| {
        let title = panel["title"].as_str().unwrap().to_owned();
        queries_of(panel).into_iter().map(move |(query, _)| (title.clone(), query))
    };
    panels().iter().flat_map(of).collect()
}

#[test]
fn the_alert_rules_hold() {
    let Some(promtool) = peer("promtool") else { return };
    for (words, name) in [
        (&["check", "rules"], "alerts.yaml"),
        (&["test", "rules"], "alerts-test.yaml"),
        (&["check", "config"], "prometheus.yaml"),
    ] {
        let ended = run(&promtool, &[words[0], words[1], &file(name)]);
        assert_eq!(ended.code, Some(0), "{name}: {ended:?}");
    }
}

#[test]
fn dashboard_and_rules_name_metrics_that_exist() {
    let source = fs::read_to_string(root().join("docs/probe.md")).unwrap();
    let rules = fs::read_to_string(file("alerts.yaml")).unwrap();
    let texts = queries().into_iter().map(|(_, query)| query).chain([rules]);
    for text in texts {
        for rest in text.split("mailrun_probe_").skip(1) {
            let name = rest.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_').next().unwrap();
            let name = name.trim_end_matches("_bucket");
            let is_known = [format!("`{name}`"), format!("`{name}{{")].iter().any(|known| source.contains(known));
            assert!(is_known, "{name} is not in docs/probe.md");
        }
    }
}

#[test]
#[ignore = "slow: make test-slow PART=probe"]
fn a_prometheus_has_data_for_each_panel() {
    let Some(prometheus) = peer("prometheus") else { return };
    let files = Files::new();
    let certificate = files.path("sink.pem");
    let sink = Sink::start(&["--tls", "starttls", "--tls-write-cert", &certificate]);
    let routes = format!(
        "[[route]]\nname = \"a\"\nserver = \"{}\"\nsink = \"{}\"\ntls = \"starttls\"\ncacert = \"{certificate}\"\n",
        sink.address(),
        sink.url()
    );
    let dead = format!("[[route]]\nname = \"dead\"\nserver = \"127.0.0.1:{}\"\n", low_port());
    let rest = "to = \"probe@a.example\"\nrate = \"2/s\"\n";
    let text = format!("state = \"state\"\nhttp = \"127.0.0.1:0\"\n{routes}{rest}{dead}{rest}");
    let probe = Probe::start(&files.keep("probe.toml", &text));
    probe.await_value("delivered_total", &["a"], 1.0);
    let scraped = probe.url().trim_start_matches("http://").trim_end_matches("/metrics");
    let config = fs::read_to_string(file("prometheus.yaml")).unwrap();
    let config =
        config.replace("127.0.0.1:9725", scraped).replace("15s", "1s").replace("alerts.yaml", &file("alerts.yaml"));
    let listen = format!("127.0.0.1:{}", low_port());
    let server = Process::start(
        &prometheus,
        &[
            &format!("--config.file={}", files.keep("prometheus.yaml", &config)),
            &format!("--storage.tsdb.path={}", files.path("metrics")),
            &format!("--web.listen-address={listen}"),
        ],
    );
    let agent: ureq::Agent = ureq::Agent::config_builder().proxy(None).http_status_as_error(false).build().into();
    let ask = |path: &str, query: &[(&str, &str)]| -> Option<Value> {
        let mut request = agent.get(format!("http://{listen}/api/v1/{path}"));
        for (name, value) in query {
            request = request.query(*name, *value);
        }
        let text = request.call().ok()?.body_mut().read_to_string().ok()?;
        serde_json::from_str(&text).ok()
    };
    for (title, query) in queries() {
        wait_until(&format!("{title}: {query}; Prometheus said {}", server.complained()), || {
            let answer = ask("query", &[("query", &query)])?;
            assert_ne!(answer["status"], "error", "{title}: {answer}");
            (!answer["data"]["result"].as_array()?.is_empty()).then_some(())
        });
    }
    let rules = ask("rules", &[]).unwrap();
    let rules = rules["data"]["groups"][0]["rules"].as_array().unwrap();
    let failed: Vec<&Value> = rules.iter().filter(|rule| rule["health"] == "err").collect();
    assert!(rules.len() == 9 && failed.is_empty(), "{failed:?}");
    wait_until("the alert of the dead server to wait for its five minutes", || {
        let alerts = ask("alerts", &[])?;
        let alerts = alerts["data"]["alerts"].as_array()?.clone();
        alerts
            .iter()
            .any(|alert| alert["labels"]["alertname"] == "ServerRefuses" && alert["labels"]["route"] == "dead")
            .then_some(())
    });
    if std::env::var_os("MAILRUN_WRITE_PICTURES").is_some() {
        thread::sleep(PICTURED);
        let picture = picture(|query| {
            let now = jiff::Timestamp::now().as_second();
            let from = now - i64::try_from(PICTURED.as_secs()).unwrap();
            let range = [("query", query), ("start", &from.to_string()), ("end", &now.to_string()), ("step", "1")];
            ask("query_range", &range).unwrap()["data"]["result"].as_array().unwrap().clone()
        });
        fs::write(root().join("docs/gallery/grafana-queries.svg"), picture).unwrap();
    }
}

/// Length of the time span that the picture shows.
const PICTURED: Duration = Duration::from_secs(60);

/// Draws the dashboard as SVG: each panel in its place, with the results of its queries. `ask` returns the series of a
/// query.
fn picture(ask: impl Fn(&str) -> Vec<Value>) -> String {
    const COLORS: [&str; 6] = ["#7cc47f", "#d8b45b", "#6fa8dc", "#e07a6f", "#b58fd0", "#9aa0ab"];
    let (column, row) = (40.0, 26.0);
    let mut drawn = String::new();
    let mut bottom: f64 = 0.0;
    for panel in panels() {
        let place = |name: &str| panel["gridPos"][name].as_f64().unwrap();
        let (left, top) = (place("x") * column, place("y") * row);
        let (width, height) = (place("w") * column - 6.0, place("h") * row - 6.0);
        bottom = bottom.max(top + height + 6.0);
        let mut lines = Vec::new();
        for (query, legend) in queries_of(&panel) {
            for series in ask(&query) {
                let label = |name: &str| series["metric"][name].as_str().unwrap_or_default().to_owned();
                let name = ["route", "stage", "reason"].iter().fold(legend.clone(), |text, label_name| {
                    text.replace(&format!("{{{{{label_name}}}}}"), &label(label_name))
                });
                let value =
                    |pair: &Value| pair[1].as_str().unwrap().parse::<f64>().ok().filter(|value| value.is_finite());
                let values: Vec<Option<f64>> = series["values"].as_array().unwrap().iter().map(value).collect();
                lines.push((name, values));
            }
        }
        let all = lines.iter().flat_map(|(_, values)| values.iter().flatten());
        let greatest = all.copied().fold(f64::MIN_POSITIVE, f64::max);
        let title = panel["title"].as_str().unwrap();
        let _ = writeln!(
            drawn,
            "<g transform=\"translate({left} {top})\"><rect width=\"{width}\" height=\"{height}\" rx=\"4\" fill=\"#22252b\"/>\
             <text x=\"8\" y=\"16\" font-weight=\"700\">{title}</text>\
             <text x=\"{}\" y=\"16\" text-anchor=\"end\" fill=\"#9aa0ab\">up to {greatest:.3}</text>",
            width - 8.0
        );
        // The legend is above the curves. Each of its rows names three curves.
        let legend_bottom = 22.0 + 14.0 * lines.len().div_ceil(3) as f64;
        for (number, (name, values)) in lines.iter().enumerate() {
            let color = COLORS[number % COLORS.len()];
            let (x, y) = (8.0 + (number % 3) as f64 * (width / 3.0), 32.0 + 14.0 * (number / 3) as f64);
            let last = values.iter().flatten().last().map_or("no data".to_owned(), |value| format!("{value:.3}"));
            let _ =
                writeln!(drawn, "<text x=\"{x}\" y=\"{y}\" fill=\"{color}\" font-size=\"10\">{name}: {last}</text>");
            let step = (width - 16.0) / values.len().max(2).saturating_sub(1) as f64;
            let room = height - legend_bottom - 10.0;
            let points = values.iter().enumerate().filter_map(|(index, value)| {
                Some(format!("{:.1},{:.1}", 8.0 + step * index as f64, height - 6.0 - (*value)? / greatest * room))
            });
            let points: Vec<String> = points.collect();
            let _ = writeln!(drawn, "<polyline points=\"{}\" fill=\"none\" stroke=\"{color}\"/>", points.join(" "));
        }
        drawn.push_str("</g>\n");
    }
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {bottom}\" width=\"{0}\" height=\"{bottom}\" \
         font-family=\"ui-sans-serif, 'DejaVu Sans', sans-serif\" font-size=\"12\" fill=\"#d4d7dd\">\n\
         <title>What the queries of the dashboard return</title>\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#16181d\"/>\n{drawn}</svg>\n",
        24.0 * column
    )
}

/// Runs a sink and the services. Its arguments are the paths of mailrun and of Prometheus, and a directory. For each
/// service, the directory has a file with the words of the service's command.
const SCRIPT: &str = r#"set -e
ip link set lo up
cd "$3"
"$1" sink --listen 127.0.0.1:25 --maildir inbox > sink.log 2>&1 &
mapfile -d '' -t words < probe
"$1" "${words[@]}" > probe.log 2>&1 &
mapfile -d '' -t words < prometheus
"$2" "${words[@]}" > prometheus.log 2>&1 &
for attempt in $(seq 600); do
    found=$(curl -sG http://127.0.0.1:9090/api/v1/query --data-urlencode 'query=mailrun_probe_delivered_total > 0' || true)
    case $found in *'"route":"127.0.0.1:25"'*) echo "$found"; exit 0 ;; esac
    sleep 0.1
done
echo "waited a minute: $found"; tail -n 20 *.log; exit 9
"#;

#[test]
#[ignore = "slow: make test-slow PART=probe"]
fn the_services_of_compose_watch_a_server() {
    let (Some(prometheus), Some(_)) = (peer("prometheus"), peer("curl")) else { return };
    if !is_root() {
        return skip("compose-probe", "network namespaces need root");
    }
    let Some(services) = services() else { return };
    let files = Files::new();
    let directory = files.path("");
    for service in ["probe", "prometheus"] {
        let mut words = words(&services[service]["command"]);
        for (place, here) in [
            ("${SERVER:?}", "127.0.0.1:25"),
            ("${TO:?}", "probe@a.example"),
            ("${MAILBOX:?}", "maildir:inbox"),
            // Use directories of the test in place of the service's volumes.
            ("/etc/prometheus", &file("")),
            ("=/prometheus\0", &format!("={}\0", files.path("metrics"))),
        ] {
            words = words.replace(place, here);
        }
        // A remaining `$` is a variable that Compose sets but this test does not replace.
        assert!(!words.contains('$'), "{words}");
        files.keep(service, &words);
    }
    let unshare = ["--net", "--pid", "--fork", "--kill-child", "bash", "-c", SCRIPT, "bash", MAILRUN];
    let ended = Process::start("unshare", &[&unshare[..], &[&prometheus, &directory]].concat()).finish();
    assert_eq!(ended.code, Some(0), "{ended:?}");
}

/// Returns the services of the Compose file with the probe, or `None` if Python's YAML reader is missing.
fn services() -> Option<Value> {
    Some(documents("deploy/compose/compose-probe.yaml")?.remove(0)["services"].take())
}

/// Joins the words of a command, each with a zero byte after it.
fn words(command: &Value) -> String {
    command.as_array().unwrap().iter().map(|word| format!("{}\0", word.as_str().unwrap())).collect()
}

#[test]
fn the_services_of_compose_use_these_files() {
    let Some(services) = services() else { return };
    let words = words(&services["probe"]["command"]);
    assert!(words.starts_with("probe\0"), "{words}");
    let port = words.trim_end_matches('\0').rsplit_once(':').unwrap().1;
    let config = fs::read_to_string(root().join("deploy/grafana/prometheus.yaml")).unwrap();
    assert!(config.contains(&format!("\"127.0.0.1:{port}\"")), "Prometheus scrapes the probe");
    for (service, volume) in [("prometheus", "../grafana:/etc/prometheus:ro"), ("grafana", "../grafana:/dashboards:ro")]
    {
        assert_eq!(services[service]["volumes"][0], volume);
        assert_eq!(services[service]["network_mode"], "service:probe");
    }
    assert!(services["probe"]["image"].as_str().unwrap().ends_with(concat!(":", env!("CARGO_PKG_VERSION"))));
}
