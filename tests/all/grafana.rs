//! deploy/grafana: the alert rules by promtool, and the dashboard by a Prometheus that scrapes a probe.
use crate::action::documents;
use crate::manual::root;
use crate::party::{Process, Sink, low_port, peer, run, wait_until};
use crate::probe::Probe;
use crate::secured::Files;
use serde_json::Value;
use std::fs;

fn file(name: &str) -> String {
    root().join("deploy/grafana").join(name).to_str().unwrap().to_owned()
}

/// The queries of all panels, each with the title of its panel. Grafana's variables have values.
fn queries() -> Vec<(String, String)> {
    let dashboard: Value = serde_json::from_str(&fs::read_to_string(file("dashboard.json")).unwrap()).unwrap();
    let mut queries = Vec::new();
    for panel in dashboard["panels"].as_array().unwrap() {
        for target in panel["targets"].as_array().unwrap() {
            let query = target["expr"].as_str().unwrap().replace("$__rate_interval", "1m").replace("$route", ".*");
            assert!(!query.contains('$'), "{query}");
            queries.push((panel["title"].as_str().unwrap().to_owned(), query));
        }
    }
    queries
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
}

#[test]
fn the_services_of_compose_use_these_files() {
    let Some(mut file) = documents("deploy/compose/compose-probe.yaml") else { return };
    let services = file.remove(0)["services"].take();
    let words: Vec<&str> =
        services["probe"]["command"].as_array().unwrap().iter().map(|word| word.as_str().unwrap()).collect();
    assert_eq!(words[0], "probe");
    let port = words.last().unwrap().rsplit_once(':').unwrap().1.to_owned();
    let config = fs::read_to_string(root().join("deploy/grafana/prometheus.yaml")).unwrap();
    assert!(config.contains(&format!("\"127.0.0.1:{port}\"")), "Prometheus scrapes the probe");
    for (service, volume) in [("prometheus", "../grafana:/etc/prometheus:ro"), ("grafana", "../grafana:/dashboards:ro")]
    {
        assert_eq!(services[service]["volumes"][0], volume);
        assert_eq!(services[service]["network_mode"], "service:probe");
    }
    assert!(services["probe"]["image"].as_str().unwrap().ends_with(concat!(":", env!("CARGO_PKG_VERSION"))));
}
