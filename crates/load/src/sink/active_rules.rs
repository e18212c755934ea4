//! The fault rules that the sink applies at present. They can be replaced while sessions run. The sink also counts how
//! often each rule acts, for the record of the run.
//!
//! For each command, a worker compares a version number without a lock, and fetches the rules only
//! if the number has changed. A rule that remains in force after a change keeps its count and the
//! state of its policy, such as a greylist.
use super::policies::{DomainCap, GcraLimiter, Greylist, KeyedLimiter};
use super::rulebook::Rulebook;
use super::rules::{LimitKey, Rule, RuleAction};
use mailrun_lock::lock;
use mailrun_measurement::record::EventKind;
use mailrun_net::clock;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Maximum number of rule changes kept for the record of the run. Beyond that, the oldest are forgotten.
const MAX_CHANGES: usize = 1000;
/// Maximum number of removed rules whose actions are counted separately. All further removed rules share one count.
const MAX_RETIRED: usize = 1000;

#[derive(Debug)]
pub(super) struct ActiveRules {
    /// Number of changes of the rules so far, or 0 if there have never been any rules.
    version: AtomicU64,
    current: Mutex<Arc<Ruleset>>,
    /// Maps the text of each rule to the number of times that the rule has acted.
    counts: Mutex<BTreeMap<String, Arc<AtomicU64>>>,
    /// Seed of random choices, for rules that come without a seed of their own.
    seed: u64,
    /// Number of sessions so far, from which each new session gets its own number.
    sessions: AtomicU64,
    /// Rules that were added or removed while the sink was running, for the record.
    changes: Mutex<Vec<RuleChange>>,
}

/// Beginning or end of a fault that a rule injects, for the record of the run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RuleChange {
    pub(super) at: Duration,
    pub(super) kind: EventKind,
    pub(super) rule: String,
}

#[derive(Debug)]
pub(super) struct Ruleset {
    pub(super) seed: u64,
    pub(super) rules: Vec<Arc<RuleState>>,
}

#[derive(Debug)]
pub(super) struct RuleState {
    pub(super) rule: Rule,
    /// Position of the rule in the list, from 0. It is part of the seed of the rule's random
    /// choices, so a rule that moves to another position chooses differently.
    pub(super) index: u64,
    pub(super) policy: Arc<PolicyState>,
    action_count: Arc<AtomicU64>,
}

#[derive(Debug)]
pub(super) enum PolicyState {
    Stateless,
    RateLimit(Mutex<GcraLimiter>),
    /// A separate rate limit for each recipient or for each domain, as the [`LimitKey`] says.
    KeyedLimit(LimitKey, Mutex<KeyedLimiter>),
    Greylist(Mutex<Greylist>),
    DomainCap(Mutex<DomainCap>),
}

impl PolicyState {
    fn of(action: &RuleAction) -> Self {
        match action {
            RuleAction::Limit { rate_per_s, burst, per, .. } if *per != LimitKey::All => {
                Self::KeyedLimit(*per, Mutex::new(KeyedLimiter::new(*rate_per_s, *burst)))
            }
            RuleAction::Limit { rate_per_s, burst, .. } => {
                Self::RateLimit(Mutex::new(GcraLimiter::new(*rate_per_s, *burst)))
            }
            RuleAction::Greylist { delay, remember, .. } => {
                Self::Greylist(Mutex::new(Greylist::new(*delay, *remember)))
            }
            RuleAction::DomainCap { most, .. } => Self::DomainCap(Mutex::new(DomainCap::new(*most))),
            _ => Self::Stateless,
        }
    }
}

impl Ruleset {
    /// Returns true if at least one rule must be evaluated separately for each recipient when a message ends.
    pub(super) fn has_recipient_rules(&self) -> bool {
        self.rules.iter().any(|rule_state| rule_state.rule.is_for_each_recipient())
    }
}

impl RuleState {
    pub(super) fn count_action(&self) {
        self.action_count.fetch_add(1, Ordering::Relaxed);
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RuleCount {
    pub(super) rule: String,
    pub(super) count: u64,
    pub(super) is_active: bool,
}

impl ActiveRules {
    pub(super) fn new(rulebook: Rulebook, seed: u64) -> Self {
        let nothing = Arc::new(Ruleset { seed, rules: Vec::new() });
        let control = Self {
            version: AtomicU64::new(0),
            current: Mutex::new(nothing),
            counts: Mutex::default(),
            seed,
            sessions: AtomicU64::new(0),
            changes: Mutex::default(),
        };
        if !rulebook.rules.is_empty() {
            control.replace(rulebook);
        }
        control
    }

    /// Returns a number that changes with every change of the rules. It is 0 if there have never
    /// been any rules.
    pub(super) fn version(&self) -> u64 {
        self.version.load(Ordering::Relaxed)
    }

    pub(super) fn current(&self) -> Option<Arc<Ruleset>> {
        let current = lock(&self.current);
        (!current.rules.is_empty()).then(|| Arc::clone(&current))
    }

    pub(super) fn rulebook(&self) -> Rulebook {
        let current = lock(&self.current);
        Rulebook {
            seed: Some(current.seed),
            rules: current.rules.iter().map(|rule_state| rule_state.rule.clone()).collect(),
        }
    }

    /// Replaces the rules. Open sessions follow the new rules from their next command on.
    pub(super) fn replace(&self, rulebook: Rulebook) {
        let mut current = lock(&self.current);
        let mut counts = lock(&self.counts);
        let rules: Vec<Arc<RuleState>> = rulebook
            .rules
            .into_iter()
            .zip(0..)
            .map(|(rule, place)| {
                let known = current.rules.iter().find(|rule_state| rule_state.rule.text() == rule.text());
                let memory = known
                    .map_or_else(|| Arc::new(PolicyState::of(&rule.action)), |rule_state| rule_state.policy.clone());
                let acted = Arc::clone(counts.entry(rule.text().to_owned()).or_default());
                Arc::new(RuleState { rule, index: place, policy: memory, action_count: acted })
            })
            .collect();
        retire(&mut counts, &rules);
        *current = Arc::new(Ruleset { seed: rulebook.seed.unwrap_or(self.seed), rules });
        // Relaxed ordering is enough, because this number only tells workers to look at the rules,
        // which they read under the mutex.
        self.version.fetch_add(1, Ordering::Relaxed);
    }

    /// Replaces the rules while the sink is running, and remembers when each fault began or ended,
    /// for the events in the record of the run.
    pub(super) fn replace_now(&self, rulebook: Rulebook) {
        let texts = |rulebook: &Rulebook| rulebook.rules.iter().map(|rule| rule.text().to_owned()).collect::<Vec<_>>();
        let before = texts(&self.rulebook());
        let after = texts(&rulebook);
        self.replace(rulebook);
        let at = clock::now();
        let change = |kind, rule: &String| RuleChange { at, kind, rule: rule.clone() };
        let ended = before.iter().filter(|rule| !after.contains(rule)).map(|rule| change(EventKind::FaultOff, rule));
        let begun = after.iter().filter(|rule| !before.contains(rule)).map(|rule| change(EventKind::FaultOn, rule));
        let mut changes = lock(&self.changes);
        changes.extend(ended.chain(begun));
        let excess = changes.len().saturating_sub(MAX_CHANGES);
        changes.drain(..excess);
    }

    /// Returns when each injected fault began and ended, up to `now`. A fault begins when its rule is added while the
    /// sink runs, and ends when its rule is removed. A stall begins and ends at the times in its rule, which count from
    /// the first connection.
    pub(super) fn changes(&self, first_connection: Option<Duration>, now: Duration) -> Vec<RuleChange> {
        let mut changes = lock(&self.changes).clone();
        let rules = Arc::clone(&lock(&self.current));
        for (rule, began) in rules.rules.iter().zip(first_connection.into_iter().cycle()) {
            if let RuleAction::Stall { at, length } = rule.rule.action {
                let times = [(EventKind::FaultOn, began + at), (EventKind::FaultOff, began + at + length)];
                let reached = times.into_iter().filter(|(_, at)| *at <= now);
                changes.extend(reached.map(|(kind, at)| RuleChange { at, kind, rule: rule.rule.text().to_owned() }));
            }
        }
        changes.sort_by_key(|change| change.at);
        changes
    }

    /// Returns how often each rule has acted. The rules in force come first, in their order, and
    /// then former rules that have acted.
    pub(super) fn rule_counts(&self) -> Vec<RuleCount> {
        let current = lock(&self.current);
        let mut counts = lock(&self.counts).clone();
        let mut effects = Vec::new();
        for rule_state in &current.rules {
            if let Some(count) = counts.remove(rule_state.rule.text()) {
                let count = count.load(Ordering::Relaxed);
                effects.push(RuleCount { rule: rule_state.rule.text().to_owned(), count, is_active: true });
            }
        }
        let former_rules = counts.into_iter().map(|(rule, count)| (rule, count.load(Ordering::Relaxed)));
        let former_rules = former_rules.filter(|(_, count)| *count > 0);
        effects.extend(former_rules.map(|(rule, count)| RuleCount { rule, count, is_active: false }));
        effects
    }

    /// Returns the number of the next session, on which the random choices of rules depend.
    pub(super) fn next_session_number(&self) -> u64 {
        self.sessions.fetch_add(1, Ordering::Relaxed)
    }
}

/// Removes the counts of rules that are no longer in force and never acted. Of the former rules that acted,
/// `MAX_RETIRED` keep a count of their own, and the counts of all others are added up.
fn retire(counts: &mut BTreeMap<String, Arc<AtomicU64>>, rules: &[Arc<RuleState>]) {
    const OTHERS: &str = "(earlier rules)";
    let is_in_force = |text: &str| rules.iter().any(|rule_state| rule_state.rule.text() == text);
    counts.retain(|text, count| is_in_force(text) || count.load(Ordering::Relaxed) > 0);
    let former_rules: Vec<String> = counts.keys().filter(|text| !is_in_force(text)).cloned().collect();
    for text in former_rules.into_iter().skip(MAX_RETIRED).filter(|text| text != OTHERS) {
        let count = counts.remove(&text).map_or(0, |count| count.load(Ordering::Relaxed));
        counts.entry(OTHERS.to_owned()).or_default().fetch_add(count, Ordering::Relaxed);
    }
}

/// Returns how often each rule acted after the counts `before` were taken. Former rules that have not acted since are
/// left out.
pub(super) fn since(counts: Vec<RuleCount>, before: &[RuleCount]) -> Vec<RuleCount> {
    let earlier = |rule: &str| before.iter().find(|known| known.rule == rule).map_or(0, |known| known.count);
    let since = |one: RuleCount| RuleCount { count: one.count.saturating_sub(earlier(&one.rule)), ..one };
    counts.into_iter().map(since).filter(|one| one.is_active || one.count > 0).collect()
}

pub(super) fn describe_counts(effects: &[RuleCount]) -> Vec<String> {
    let word = |effects: &RuleCount| {
        let times = if effects.count == 1 { "once".to_owned() } else { format!("{} times", effects.count) };
        let suffix = if effects.is_active { "" } else { ", no longer active" };
        format!("'{}' ({times}{suffix})", effects.rule)
    };
    effects.iter().map(word).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn book(rules: &[&str]) -> Rulebook {
        Rulebook { seed: None, rules: rules.iter().map(|text| Rule::parse(text).unwrap()).collect() }
    }

    #[test]
    fn a_sink_without_rules_has_version_nought() {
        let control = ActiveRules::new(Rulebook::default(), 1);
        assert_eq!((control.version(), control.current().is_none()), (0, true));
        control.replace(book(&[".: drop"]));
        assert_eq!((control.version(), control.current().is_some()), (1, true));
        control.replace(book(&[]));
        assert_eq!((control.version(), control.current().is_none()), (2, true));
        assert!(control.rule_counts().is_empty(), "what never acted is forgotten");
    }

    #[test]
    fn a_rule_that_is_kept_keeps_its_memory_and_its_count() {
        let limit = "mail: limit 1/s burst 1";
        let control = ActiveRules::new(book(&[limit, ".: drop"]), 1);
        let take = || match &*control.current().unwrap().rules.last().unwrap().policy {
            PolicyState::RateLimit(bucket) => lock(bucket).take(std::time::Duration::ZERO),
            other => panic!("{other:?}"),
        };
        let before = control.current().unwrap();
        before.rules.iter().for_each(|rule_state| rule_state.count_action());
        let PolicyState::RateLimit(bucket) = &*before.rules[0].policy else { panic!("it is a limit") };
        assert!(lock(bucket).take(std::time::Duration::ZERO));
        control.replace(book(&["rcpt: directed", limit]));
        assert!(!take(), "the bucket is still empty");
        before.rules[0].count_action();
        let words = describe_counts(&control.rule_counts());
        let expected =
            ["'rcpt: directed' (0 times)", "'mail: limit 1/s burst 1' (2 times)", "'.: drop' (once, no longer active)"];
        assert_eq!(words, expected);
        control.replace(book(&["mail: limit 1/s burst 2"]));
        assert!(take(), "another rule begins anew");
    }

    #[test]
    fn begins_and_ends_of_faults_are_known_once_they_are_reached() {
        let second = Duration::from_secs;
        let control = ActiveRules::new(book(&["rcpt: soft reject", "data: stall 2s..5s"]), 1);
        let kinds = |first, now| {
            let changes = control.changes(first, now);
            changes.iter().map(|change| (change.kind, change.at.as_secs())).collect::<Vec<_>>()
        };
        assert_eq!(kinds(None, second(99)), [], "no client has connected");
        assert_eq!(kinds(Some(second(10)), second(11)), []);
        assert_eq!(kinds(Some(second(10)), second(14)), [(EventKind::FaultOn, 12)]);
        let both = [(EventKind::FaultOn, 12), (EventKind::FaultOff, 15)];
        assert_eq!(kinds(Some(second(10)), second(15)), both);
        control.replace_now(book(&["rcpt: soft reject", ".: drop"]));
        let changes = control.changes(None, second(0));
        let texts: Vec<_> = changes.iter().map(|change| (change.kind, change.rule.as_str())).collect();
        assert_eq!(texts, [(EventKind::FaultOff, "data: stall 2s..5s"), (EventKind::FaultOn, ".: drop")]);
    }

    #[test]
    fn the_newest_changes_are_remembered() {
        let control = ActiveRules::new(Rulebook::default(), 1);
        for number in 0..MAX_CHANGES {
            control.replace_now(book(&[&format!("mail: delay {number}ms")]));
        }
        let changes = control.changes(None, Duration::MAX);
        let newest = changes.last().map(|change| (change.kind, change.rule.clone()));
        assert_eq!(newest, Some((EventKind::FaultOn, format!("mail: delay {}ms", MAX_CHANGES - 1))));
        assert_eq!(changes.len(), MAX_CHANGES);
    }

    #[test]
    fn what_is_remembered_of_earlier_rules_is_bounded_and_sums() {
        let control = ActiveRules::new(Rulebook::default(), 1);
        let all = MAX_RETIRED as u64 + 500;
        for number in 0..all {
            control.replace(book(&[&format!("mail: delay {number}ms")]));
            control.current().unwrap().rules[0].count_action();
        }
        control.replace(book(&[]));
        let effects = control.rule_counts();
        assert_eq!(effects.iter().map(|effects| effects.count).sum::<u64>(), all);
        assert!(effects.len() <= MAX_RETIRED + 1, "{}", effects.len());
    }
}
