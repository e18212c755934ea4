//! Handles failed logins: limits for each client address and user name, the delay of the next login,
//! and the log lines.
//!
//! ```text
//! AUTH ── wait 0 s, 1 s, 2 s, 4 s … ──▶ charge ──▶ the proof is checked ──▶ succeeded
//!               │                         │                       └───────▶ failed: a log line
//!               └──────── locked ─────────┴──▶ 421 4.7.0, and the proof is not checked
//! ```
//! While a login is being checked, it counts as a pending failure of the client address and of the user. If it
//! succeeds, it no longer counts. Guesses on many connections at once can therefore not exceed the allowed number of
//! failures. If that number of logins is being checked, the next login waits until one of them is done, so correct
//! logins are delayed but not refused.
//!
//! If a client address has logged in as a user before, failures of this pair are counted separately. Failures of other
//! addresses, or of other users at this address, can then not lock out the pair. Existing and unknown users are treated
//! alike, so a lock does not reveal which users exist. The module does no I/O and gets the time as an argument, so its
//! tests need not wait.
use crate::config::LoginLimits;
use mailrun_lock::lock;
use mailrun_net::ClientKey;
use mailrun_net::recent::{RecentMap, Shards};
use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

/// Maximum number of client addresses whose failures are remembered. The same limit applies to user names, and to pairs
/// of both. Records that were not used recently are dropped first. A record takes about 100 bytes.
const MAX_REMEMBERED: usize = 65_536;
/// Maximum delay of a login, as in Dovecot. With a longer delay, clients would give up before the
/// answer.
const MAX_DELAY: Duration = Duration::from_secs(15);
const LOG_INTERVAL: Duration = Duration::from_secs(60);
/// Maximum number of clients whose failures are logged separately. Failures of other clients are
/// summed up in one line.
const MAX_LOGGED_CLIENTS: usize = 1000;

#[derive(Clone, Copy, Debug)]
pub(crate) struct LoginIdentity<'a> {
    /// Key under which the client's failures are counted, or `None` if they are not counted.
    pub(crate) client: Option<ClientKey>,
    pub(crate) user: &'a str,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LoginLocked;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LoginRefusal {
    Locked,
    /// So many logins are being checked that the limit would be reached if all of them failed. This login must wait
    /// until the check of one of them is done.
    Busy,
}

/// The records in which a login is counted. `charge` chooses them, and the outcome must later be counted in the same
/// records. Choosing again could give other records, because another login may have added a record for the pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LoginBudget {
    /// The client has logged in as this user before, so only the record of this pair counts the login.
    Pair,
    /// Both the record of the client address and the record of the user count the login. If failures of the address are
    /// not counted, only the user's record counts it.
    Shared,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LoginLogLine {
    /// Failures of a client since the last log line about this client, with the user and method of the latest failure.
    Failed { client: Option<ClientKey>, user: String, method: &'static str, attempts: u64 },
    /// Failed logins of all clients beyond the `MAX_LOGGED_CLIENTS` that are logged separately.
    Others { attempts: u64 },
    /// A client, a user or a pair of both had too many failures, so logins are refused for `for_s` seconds.
    Locked { client: Option<ClientKey>, user: Option<String>, for_s: u64 },
}

#[derive(Clone, Copy, Debug, Default)]
struct FailureRecord {
    /// Number of failures within the period that began at `since`.
    failures: u32,
    /// Number of logins that are being checked. They count towards the limit, because they may still fail.
    pending: u32,
    since: Duration,
    locked_until: Duration,
}

impl FailureRecord {
    fn refresh(&mut self, limits: &LoginLimits, now: Duration) {
        let was_locked = self.locked_until > Duration::ZERO && now >= self.locked_until;
        if was_locked || self.locked_until == Duration::ZERO && now.saturating_sub(self.since) >= limits.period {
            self.clear_failures(now);
        }
    }

    /// Sets the number of failures to 0 and ends the lock. Logins that are being checked stay counted as pending.
    fn clear_failures(&mut self, now: Duration) {
        *self = Self { since: now, pending: self.pending, ..Self::default() };
    }

    fn is_locked(&self, now: Duration) -> bool {
        now < self.locked_until
    }

    fn wait(&self, limits: &LoginLimits) -> Duration {
        match self.failures {
            0 => Duration::ZERO,
            failures => limits.delay.saturating_mul(1 << (failures - 1).min(20)).min(MAX_DELAY),
        }
    }

    fn charge(&mut self, limit: u32, now: Duration) -> Result<(), LoginRefusal> {
        // After a reload has lowered the limit, the failures so far may already exceed the limit. `Busy` would then
        // make the login wait for other logins in vain, so return `Locked`.
        if self.is_locked(now) || self.failures >= limit {
            return Err(LoginRefusal::Locked);
        }
        if self.failures + self.pending >= limit {
            return Err(LoginRefusal::Busy);
        }
        self.pending += 1;
        Ok(())
    }

    fn give_back(&mut self) {
        self.pending = self.pending.saturating_sub(1);
    }

    /// Counts a failed login. Returns true if this failure reaches the limit, which locks the client address, the user
    /// or the pair to which the record belongs.
    fn fail(&mut self, limit: u32, limits: &LoginLimits, now: Duration) -> bool {
        self.give_back();
        self.failures += 1;
        let locks = self.failures == limit;
        if locks {
            self.locked_until = now + limits.lock_duration;
        }
        locks
    }
}

#[derive(Debug)]
pub(crate) struct LoginGuard {
    clients: Shards<RecentMap<ClientKey, FailureRecord>>,
    /// Failures of each user. The key is a hash of the name, because untrusted clients choose the names, which may be
    /// long.
    users: Shards<RecentMap<u64, FailureRecord>>,
    /// Failures of each pair of client and user. A pair gets a record when the client first logs in as that user.
    pairs: Shards<RecentMap<(Option<ClientKey>, u64), FailureRecord>>,
    hasher: RandomState,
    log: Mutex<FailureLog>,
}

impl LoginGuard {
    pub(crate) fn new() -> Self {
        Self {
            clients: Shards::new(MAX_REMEMBERED, RecentMap::new),
            users: Shards::new(MAX_REMEMBERED, RecentMap::new),
            pairs: Shards::new(MAX_REMEMBERED, RecentMap::new),
            hasher: RandomState::new(),
            log: Mutex::default(),
        }
    }

    /// Returns the time that a login must wait before it is checked, because of earlier failures.
    ///
    /// # Errors
    /// Fails if the client address, the user, or the pair of address and user is locked after too many failures.
    pub(crate) fn wait(
        &self,
        who: LoginIdentity<'_>,
        limits: &LoginLimits,
        now: Duration,
    ) -> Result<Duration, LoginLocked> {
        let mut wait = Duration::ZERO;
        let is_locked = self.any_record(self.budget(who), who, limits, now, |record, _| {
            wait = wait.max(record.wait(limits));
            record.is_locked(now)
        });
        if is_locked { Err(LoginLocked) } else { Ok(wait) }
    }

    /// Counts a login as pending before it is checked. The caller must then call [`LoginGuard::succeeded`] or
    /// [`LoginGuard::failed`].
    ///
    /// # Errors
    /// Fails with `Locked` after too many failures, and with `Busy` if the login must wait for other logins.
    pub(crate) fn charge(
        &self,
        who: LoginIdentity<'_>,
        limits: &LoginLimits,
        now: Duration,
    ) -> Result<LoginBudget, LoginRefusal> {
        let account = self.budget(who);
        let mut charged = 0;
        let mut refusal = None;
        self.any_record(account, who, limits, now, |record, limit| {
            refusal = record.charge(limit, now).err();
            charged += u32::from(refusal.is_none());
            refusal.is_some()
        });
        let Some(refusal) = refusal else { return Ok(account) };
        // The address's record counts the login as pending before the user's record is asked. If the user's record
        // refuses, take this back. Otherwise, the login would stay pending forever, because a refused login is never
        // checked.
        self.any_record(account, who, limits, now, |record, _| {
            let is_charged = charged > 0;
            if is_charged {
                charged -= 1;
                record.give_back();
            }
            !is_charged
        });
        Err(refusal)
    }

    /// Counts a login as succeeded, so it is no longer pending. From now on, a separate record counts the failures of
    /// this client as this user.
    pub(crate) fn succeeded(&self, who: LoginIdentity<'_>, account: LoginBudget, limits: &LoginLimits, now: Duration) {
        self.any_record(account, who, limits, now, |record, _| {
            record.give_back();
            false
        });
        let pair = self.pair(who);
        let fresh = || FailureRecord { since: now, ..FailureRecord::default() };
        self.pairs.lock(&pair).get_or_insert_with(pair, fresh).clear_failures(now);
    }

    /// Counts a pending login as failed in the records that `account` names. Returns the lines that must be logged
    /// immediately.
    pub(crate) fn failed(
        &self,
        who: LoginIdentity<'_>,
        method: &'static str,
        account: LoginBudget,
        limits: &LoginLimits,
        now: Duration,
    ) -> Vec<LoginLogLine> {
        let mut lines: Vec<LoginLogLine> = self.log().note(who, method, now).into_iter().collect();
        let for_s = limits.lock_duration.as_secs();
        let mut locked = Vec::new();
        self.any_record(account, who, limits, now, |record, limit| {
            locked.push(record.fail(limit, limits, now));
            false
        });
        // `locked` has one value for each record that counted the failure. List the owners of the records in the same
        // order, so that `zip` assigns each value to its owner. The address comes before the user.
        let named = || Some(who.user.to_owned());
        let whose: Vec<_> = match (account, who.client) {
            (LoginBudget::Pair, client) => vec![(client, named())],
            (LoginBudget::Shared, Some(client)) => vec![(Some(client), None), (None, named())],
            (LoginBudget::Shared, None) => vec![(None, named())],
        };
        let locked = whose.into_iter().zip(locked).filter(|(_, is_locked)| *is_locked);
        lines.extend(locked.map(|((client, user), _)| LoginLogLine::Locked { client, user, for_s }));
        lines
    }

    /// Returns the log lines that are due. They sum up the failures that were not logged immediately.
    pub(crate) fn summaries(&self, now: Duration) -> Vec<LoginLogLine> {
        self.log().summaries(now)
    }

    fn log(&self) -> MutexGuard<'_, FailureLog> {
        lock(&self.log)
    }

    fn pair(&self, who: LoginIdentity<'_>) -> (Option<ClientKey>, u64) {
        (who.client, self.hasher.hash_one(who.user))
    }

    fn budget(&self, who: LoginIdentity<'_>) -> LoginBudget {
        let pair = self.pair(who);
        let has_logged_in = self.pairs.lock(&pair).get_mut(&pair).is_some();
        if has_logged_in { LoginBudget::Pair } else { LoginBudget::Shared }
    }

    /// Calls `each` with each record that `account` selects: the record of the pair, or the records of the address and
    /// of the user. The second argument of `each` is the number of failures at which the record is locked. Stops and
    /// returns true as soon as `each` returns true.
    fn any_record(
        &self,
        account: LoginBudget,
        who: LoginIdentity<'_>,
        limits: &LoginLimits,
        now: Duration,
        mut each: impl FnMut(&mut FailureRecord, u32) -> bool,
    ) -> bool {
        let fresh = || FailureRecord { since: now, ..FailureRecord::default() };
        let pair @ (_, user) = self.pair(who);
        if account == LoginBudget::Pair {
            let mut pairs = self.pairs.lock(&pair);
            let record = pairs.get_or_insert_with(pair, fresh);
            record.refresh(limits, now);
            return each(record, limits.failures);
        }
        if let Some(client) = who.client {
            let mut clients = self.clients.lock(&client);
            let record = clients.get_or_insert_with(client, fresh);
            record.refresh(limits, now);
            if each(record, limits.failures) {
                return true;
            }
        }
        let mut users = self.users.lock(&user);
        let record = users.get_or_insert_with(user, fresh);
        record.refresh(limits, now);
        each(record, limits.user_failures)
    }
}

/// Failed logins that are not logged yet. The first failure of a client is logged immediately, and further failures are
/// summed up once a minute.
#[derive(Debug, Default)]
struct FailureLog {
    clients: HashMap<Option<ClientKey>, FailureSummary>,
    others: u64,
    next_check: Duration,
}

#[derive(Debug)]
struct FailureSummary {
    since: Duration,
    user: String,
    method: &'static str,
    attempts: u64,
}

/// Untrusted clients choose the user names, so the log shows at most this many characters of a name.
const MAX_LOGGED_NAME: usize = 256;

impl FailureLog {
    fn note(&mut self, who: LoginIdentity<'_>, method: &'static str, now: Duration) -> Option<LoginLogLine> {
        let user: String = who.user.chars().take(MAX_LOGGED_NAME).collect();
        if let Some(summary) = self.clients.get_mut(&who.client) {
            summary.attempts += 1;
            (summary.user, summary.method) = (user, method);
            return None;
        }
        if self.clients.len() >= MAX_LOGGED_CLIENTS {
            self.others += 1;
            return None;
        }
        self.clients.insert(who.client, FailureSummary { since: now, user: user.clone(), method, attempts: 0 });
        Some(LoginLogLine::Failed { client: who.client, user, method, attempts: 1 })
    }

    fn summaries(&mut self, now: Duration) -> Vec<LoginLogLine> {
        // Every worker calls this function several times a second. Search for lines to log at most once a second.
        if now < self.next_check {
            return Vec::new();
        }
        self.next_check = now + LOG_INTERVAL / 60;
        let mut lines = Vec::new();
        self.clients.retain(|client, summary| {
            if now.saturating_sub(summary.since) < LOG_INTERVAL {
                return true;
            }
            let attempts = summary.attempts;
            let method = summary.method;
            if attempts > 0 {
                lines.push(LoginLogLine::Failed { client: *client, user: summary.user.clone(), method, attempts });
                (summary.since, summary.attempts) = (now, 0);
            }
            attempts > 0
        });
        if self.others > 0 && self.clients.len() < MAX_LOGGED_CLIENTS {
            lines.push(LoginLogLine::Others { attempts: std::mem::take(&mut self.others) });
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::net::IpAddr;

    const SECOND: Duration = Duration::from_secs(1);

    fn client(last: u8) -> Option<ClientKey> {
        Some(ClientKey::of(IpAddr::from([192, 0, 2, last])))
    }

    fn identity_of(last: u8, user: &str) -> LoginIdentity<'_> {
        LoginIdentity { client: client(last), user }
    }

    fn log_in(guard: &LoginGuard, who: LoginIdentity<'_>, is_right: bool, now: Duration) -> bool {
        let limits = LoginLimits::default();
        let charged = guard.charge(who, &limits, now);
        match (charged, is_right) {
            (Ok(account), true) => guard.succeeded(who, account, &limits, now),
            (Ok(account), false) => drop(guard.failed(who, "PLAIN", account, &limits, now)),
            (Err(refusal), _) => assert_eq!(refusal, LoginRefusal::Locked, "nobody else is being checked"),
        }
        charged.is_ok()
    }

    #[test]
    fn logins_that_are_right_at_the_same_time_wait_and_are_not_locked() {
        let guard = LoginGuard::new();
        let limits = LoginLimits::default();
        for round in 0..5 {
            let now = SECOND * (round + 1);
            // In every round, ten logins (the default limit) must be allowed at once. The first round charges them to
            // the address and to ann. Later rounds charge them to the pair of address and user, because ann has then
            // logged in from this address before.
            let charged: Vec<LoginBudget> =
                (0..10).map(|_| guard.charge(identity_of(1, "ann"), &limits, now).unwrap()).collect();
            assert_eq!(guard.charge(identity_of(1, "ann"), &limits, now), Err(LoginRefusal::Busy));
            assert_eq!(guard.wait(identity_of(1, "ann"), &limits, now), Ok(Duration::ZERO));
            charged.into_iter().for_each(|account| guard.succeeded(identity_of(1, "ann"), account, &limits, now));
        }
        assert_eq!(
            guard.wait(identity_of(1, "bob"), &limits, SECOND * 9),
            Ok(Duration::ZERO),
            "the address has no failures"
        );
        assert!(log_in(&guard, identity_of(1, "bob"), true, SECOND * 9));
    }

    #[test]
    fn guesses_at_the_same_time_are_no_more_than_may_fail() {
        let guard = LoginGuard::new();
        let limits = LoginLimits::default();
        let charge = || guard.charge(identity_of(1, "ann"), &limits, SECOND);
        let charged: Vec<LoginBudget> = std::iter::from_fn(|| charge().ok()).collect();
        assert_eq!((charged.len(), charge()), (10, Err(LoginRefusal::Busy)));
        charged
            .into_iter()
            .for_each(|account| drop(guard.failed(identity_of(1, "ann"), "PLAIN", account, &limits, SECOND)));
        assert_eq!(charge(), Err(LoginRefusal::Locked));
    }

    #[test]
    fn failures_above_a_limit_that_was_lowered_refuse_at_once() {
        let guard = LoginGuard::new();
        assert!((0..5).all(|_| log_in(&guard, identity_of(1, "ann"), false, SECOND)));
        let lowered = LoginLimits { failures: 3, ..LoginLimits::default() };
        assert_eq!(guard.charge(identity_of(1, "ann"), &lowered, SECOND), Err(LoginRefusal::Locked));
        assert!(guard.charge(identity_of(1, "ann"), &lowered, SECOND + lowered.period).is_ok());
    }

    #[test]
    fn each_failure_doubles_the_wait_until_the_address_is_locked() {
        let guard = LoginGuard::new();
        let limits = LoginLimits::default();
        let mut waits = Vec::new();
        while let Ok(wait) = guard.wait(identity_of(1, "ann"), &limits, SECOND) {
            waits.push(wait.as_secs());
            assert!(log_in(&guard, identity_of(1, "ann"), false, SECOND));
        }
        assert_eq!(waits, [0, 1, 2, 4, 8, 15, 15, 15, 15, 15]);
        assert_eq!(guard.wait(identity_of(1, "bob"), &limits, SECOND * 600), Err(LoginLocked), "whoever it says it is");
        assert_eq!(
            guard.wait(identity_of(2, "bob"), &limits, SECOND * 2),
            Ok(Duration::ZERO),
            "another address goes on"
        );
        assert_eq!(guard.wait(identity_of(2, "ann"), &limits, SECOND * 2), Ok(MAX_DELAY), "the user's logins wait");
        assert_eq!(guard.wait(identity_of(1, "bob"), &limits, SECOND * 601), Ok(Duration::ZERO), "and then it is over");
    }

    #[test]
    fn a_user_is_locked_for_strangers_and_not_for_who_has_logged_in_from_there() {
        let guard = LoginGuard::new();
        let limits = LoginLimits::default();
        assert!(log_in(&guard, identity_of(1, "ann"), true, SECOND));
        let guesses = (10..250).filter(|last| log_in(&guard, identity_of(*last, "ann"), false, SECOND * 2)).count();
        assert_eq!(guesses, 100);
        assert_eq!(guard.wait(identity_of(2, "ann"), &limits, SECOND * 3), Err(LoginLocked));
        assert_eq!(guard.wait(identity_of(1, "ann"), &limits, SECOND * 3), Ok(Duration::ZERO));
        // Ten failed logins as bob lock the address. Ann must still be able to log in there, because she has logged in
        // from this address before.
        let guesses = (0..20).filter(|_| log_in(&guard, identity_of(1, "bob"), false, SECOND * 4)).count();
        assert_eq!(guesses, 10);
        assert!(log_in(&guard, identity_of(1, "ann"), true, SECOND * 5));
        // An attacker at ann's own address must also get only ten guesses at her password.
        let guesses = (0..20).filter(|_| log_in(&guard, identity_of(1, "ann"), false, SECOND * 6)).count();
        assert_eq!(guesses, 10);
        assert!(!log_in(&guard, identity_of(1, "ann"), true, SECOND * 7));
    }

    #[test]
    fn logins_that_succeed_cost_nothing_however_many_they_are() {
        let guard = LoginGuard::new();
        for number in 0..1000 {
            let user = format!("user{}", number % 50);
            assert!(log_in(&guard, identity_of(1, &user), true, SECOND));
        }
        assert_eq!(guard.wait(identity_of(1, "new"), &LoginLimits::default(), SECOND), Ok(Duration::ZERO));
    }

    #[test]
    fn an_address_that_is_not_counted_is_not_locked_and_users_are() {
        let guard = LoginGuard::new();
        let webmail = |user| LoginIdentity { client: None, user };
        let names: Vec<String> = (0..300).map(|number| format!("user{number}")).collect();
        let guesses = names.iter().filter(|name| log_in(&guard, webmail(name), false, SECOND)).count();
        assert_eq!(guesses, 300);
        let guesses = (0..300).filter(|_| log_in(&guard, webmail("ann"), false, SECOND)).count();
        assert_eq!(guesses, 100);
    }

    #[test]
    fn the_log_has_the_first_failure_at_once_and_the_others_once_a_minute() {
        let guard = LoginGuard::new();
        let limits = LoginLimits { failures: 1000, ..LoginLimits::default() };
        let fail = |user, now| {
            let account = guard.charge(identity_of(1, user), &limits, now).unwrap();
            guard.failed(identity_of(1, user), "LOGIN", account, &limits, now)
        };
        let line = |user: &str, attempts| LoginLogLine::Failed {
            client: client(1),
            user: user.into(),
            method: "LOGIN",
            attempts,
        };
        assert_eq!(fail("ann", SECOND), [line("ann", 1)]);
        for number in 0..50 {
            assert!(fail("bob", SECOND * (2 + number)).is_empty());
        }
        assert!(guard.summaries(SECOND * 60).is_empty());
        assert_eq!(guard.summaries(SECOND * 61), [line("bob", 50)]);
        assert!(fail("eve", SECOND * 62).is_empty());
        assert_eq!(guard.summaries(SECOND * 122), [line("eve", 1)]);
        assert!(guard.summaries(SECOND * 200).is_empty() && guard.summaries(SECOND * 300).is_empty());
        assert_eq!(fail("eve", SECOND * 300), [line("eve", 1)]);
    }

    #[test]
    fn a_lock_is_logged_once_with_whose_it_is() {
        let guard = LoginGuard::new();
        let limits = LoginLimits { user_failures: 12, ..LoginLimits::default() };
        let mut locks = Vec::new();
        for number in 0..30 {
            let who = identity_of(if number < 15 { 1 } else { 2 }, "ann");
            if let Ok(account) = guard.charge(who, &limits, SECOND) {
                let lines = guard.failed(who, "PLAIN", account, &limits, SECOND);
                locks.extend(lines.into_iter().filter(|line| matches!(line, LoginLogLine::Locked { .. })));
            }
        }
        let [address, user] = locks.as_slice() else { panic!("{locks:?}") };
        assert_eq!(*address, LoginLogLine::Locked { client: client(1), user: None, for_s: 600 });
        assert_eq!(*user, LoginLogLine::Locked { client: None, user: Some("ann".into()), for_s: 600 });
    }

    #[test]
    fn clients_without_number_are_summed_up_in_the_log() {
        let guard = LoginGuard::new();
        let limits = LoginLimits { user_failures: u32::MAX, ..LoginLimits::default() };
        let mut lines = 0;
        for number in 0..3000_u32 {
            let client = Some(ClientKey::of(IpAddr::from((0x0a00_0000 + number).to_be_bytes())));
            let who = LoginIdentity { client, user: "ann" };
            let account = guard.charge(who, &limits, SECOND).unwrap();
            lines += guard.failed(who, "PLAIN", account, &limits, SECOND).len();
        }
        assert_eq!(lines, MAX_LOGGED_CLIENTS);
        assert_eq!(guard.summaries(SECOND * 100), [LoginLogLine::Others { attempts: 2000 }]);
    }

    proptest! {
        /// An attacker can spread guesses over addresses and users. Within one lock duration, fewer than twice the
        /// allowed number of failures may be checked for any address and for any user. A correct login must not raise
        /// this limit for other users or addresses.
        #[test]
        fn no_more_guesses_are_checked_than_may_fail(
            steps in prop::collection::vec((0..120_u64, 0..6_u8, 0..4_u8, 0..20_u8), 1..400)
        ) {
            let guard = LoginGuard::new();
            let limits = LoginLimits { user_failures: 20, ..LoginLimits::default() };
            let users = ["ann", "bob", "eve", "nobody"];
            let mut now = Duration::ZERO;
            let mut failed = Vec::new();
            let mut known = std::collections::HashSet::new();
            for (pause, address, user, choice) in steps {
                now += Duration::from_secs(pause / 10);
                let who = identity_of(address, users[usize::from(user)]);
                let Ok(account) = guard.charge(who, &limits, now) else { continue };
                if choice == 0 {
                    guard.succeeded(who, account, &limits, now);
                    known.insert((address, user));
                } else {
                    guard.failed(who, "PLAIN", account, &limits, now);
                    if !known.contains(&(address, user)) {
                        failed.push((now, address, user));
                    }
                }
            }
            for (first, (from, address, user)) in failed.iter().enumerate() {
                let within = failed[first..].iter().take_while(|(then, ..)| *then < *from + limits.lock_duration);
                let mut by_address = 0;
                let mut by_user = 0;
                for (_, other_address, other_user) in within {
                    by_address += u32::from(other_address == address);
                    by_user += u32::from(other_user == user);
                }
                // The limits apply to each period separately. A lock duration can contain the end of one period and the
                // beginning of the next period. So almost twice the limit is possible.
                prop_assert!(by_address < 2 * limits.failures && by_user < 2 * limits.user_failures);
            }
        }
    }
}
