//! Lets a session check logins (AUTH) only as often as the login limits permit, counts successes
//! and failures, and logs failures.
use crate::config::Config;
use crate::context::RelayContext;
use crate::fault_log::LOG_TARGET;
use crate::smtpd::login_limits::{LoginBudget, LoginIdentity, LoginLogLine, LoginRefusal};
use mailrun_net::{Answer, ClientKey, LoginOutcome, clock};
use mailrun_smtp::login::{Auth, Proof};
use mailrun_smtp::reply::Reply;
use mailrun_smtp::reply_reason::ReplyReason;
use mailrun_smtp::sasl::Mechanism;
use mailrun_smtp::xtext;
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

static LOCKED_REPLY: Reply = Reply::fixed("421 4.7.0 Too many failed logins, try again later\r\n");

/// Reply to a login that waited too long while other logins were checked (RFC 4954 §6). The login
/// does not count as failed.
static BUSY_REPLY: Reply = Reply::fixed("454 4.7.0 Too many logins at the same time, try again later\r\n");

/// Maximum time that a login waits while other logins are checked. It is shorter than the timeouts of mail clients.
const CHARGE_TIMEOUT: Duration = Duration::from_secs(60);
const CHARGE_RETRY_INTERVAL: Duration = Duration::from_millis(10);

pub(crate) struct SessionLogins {
    context: Arc<RelayContext>,
    config: Arc<Config>,
    /// Key under which the client's failures are counted. `None` if they are not counted, because the client has no
    /// known address, or because the configuration exempts its address.
    client: Option<ClientKey>,
    /// The login that is being checked, or `None` after the session has reported whether it succeeded.
    attempt: Option<Rc<LoginAttempt>>,
}

struct LoginAttempt {
    context: Arc<RelayContext>,
    config: Arc<Config>,
    client: Option<ClientKey>,
    user: String,
    mechanism: Mechanism,
    /// The records of the login guard that count this login as pending. `None` until the login is counted, and again
    /// after its outcome is recorded.
    charged_to: Cell<Option<LoginBudget>>,
}

impl SessionLogins {
    /// `client` is `None` if the client has no known address, for example on a Unix-domain socket. Failures of such a
    /// client count only against the user.
    pub(crate) fn new(context: &Arc<RelayContext>, config: &Arc<Config>, client: Option<std::net::IpAddr>) -> Self {
        let counted_client = client.filter(|address| !config.login_exempt.contain(*address));
        Self {
            context: Arc::clone(context),
            config: Arc::clone(config),
            client: counted_client.map(ClientKey::of),
            attempt: None,
        }
    }

    fn begin(&mut self, auth: &Auth<'_>) -> Rc<LoginAttempt> {
        let attempt = Rc::new(LoginAttempt {
            context: Arc::clone(&self.context),
            config: Arc::clone(&self.config),
            client: self.client,
            user: auth.name.to_owned(),
            mechanism: auth.mechanism,
            charged_to: Cell::new(None),
        });
        self.attempt = Some(Rc::clone(&attempt));
        attempt
    }

    /// Checks a user name and a password, after the delay that earlier failed logins have caused.
    pub(crate) fn check(&mut self, auth: &Auth<'_>) -> Answer {
        let Proof::Shown(shown) = auth.proof else {
            return Answer::Reply(ReplyReason::AuthUnavailable.reply().clone());
        };
        let attempt = self.begin(auth);
        let shown = shown.to_vec();
        // Clear the attempt, because `LoginAttempt::check` already records the outcome. Otherwise, the session would
        // record it a second time.
        self.attempt = None;
        attempt.after_delay(move |attempt| attempt.check(&shown))
    }

    /// Returns the secret with which the session checks the client's digest. With CRAM-MD5, the call counts as a guess
    /// of the password, because the client has already sent its digest. With SCRAM-SHA-256, the client sends its digest
    /// later, and only `proof` counts the guess.
    pub(crate) fn look_up(&mut self, auth: &Auth<'_>) -> Answer {
        let attempt = self.begin(auth);
        if auth.mechanism == Mechanism::ScramSha256 {
            return attempt.wait().map_or_else(Answer::Reply, |_| attempt.secret());
        }
        attempt.after_delay(LoginAttempt::secret)
    }

    /// Counts the client's digest as a guess of the password. If earlier logins have failed, the answer is delayed, and
    /// the session checks the digest only after it. The session must call this when the client has sent its digest.
    pub(crate) fn proof(&self) -> Answer {
        let Some(attempt) = self.attempt.clone() else {
            return Answer::Reply(ReplyReason::AuthUnavailable.reply().clone());
        };
        attempt.after_delay(|_| Answer::Yes)
    }

    /// Records the outcome after the session has compared the client's digest with the secret.
    pub(crate) fn ended(&mut self, outcome: LoginOutcome) {
        if let Some(attempt) = self.attempt.take() {
            attempt.record_outcome(outcome);
        }
    }
}

impl Drop for SessionLogins {
    /// Counts a login as failed if the session ended before its outcome was known. Otherwise the login would be counted
    /// as pending forever.
    fn drop(&mut self) {
        self.ended(LoginOutcome::Failed);
    }
}

impl LoginAttempt {
    fn identity(&self) -> LoginIdentity<'_> {
        LoginIdentity { client: self.client, user: &self.user }
    }

    fn wait(&self) -> Result<Duration, Reply> {
        let waited = self.context.login_guard.wait(self.identity(), &self.config.login_limits, clock::now());
        waited.map_err(|_| self.refused(&LOCKED_REPLY))
    }

    /// Waits for the delay that earlier failures cause, counts the login as pending, and then calls `then`. If the
    /// login is refused, `then` is not called.
    fn after_delay(self: Rc<Self>, then: impl FnOnce(&Self) -> Answer + 'static) -> Answer {
        let wait = match self.wait() {
            Ok(wait) => wait,
            Err(reply) => return Answer::Reply(reply),
        };
        if wait == Duration::ZERO {
            match self.charge() {
                Ok(()) => return then(&self),
                Err(LoginRefusal::Locked) => return Answer::Reply(self.refused(&LOCKED_REPLY)),
                Err(LoginRefusal::Busy) => {}
            }
        }
        Answer::eventually(async move {
            mailrun_net::sleep(wait).await;
            self.charge_when_free().await.map_or_else(Answer::Reply, |()| then(&self))
        })
    }

    fn charge(&self) -> Result<(), LoginRefusal> {
        let account = self.context.login_guard.charge(self.identity(), &self.config.login_limits, clock::now())?;
        self.charged_to.set(Some(account));
        Ok(())
    }

    /// Counts this login as pending. If too many logins are being checked, first waits until one of them is done, but
    /// at most for `CHARGE_TIMEOUT`.
    async fn charge_when_free(&self) -> Result<(), Reply> {
        let limit = clock::now() + CHARGE_TIMEOUT;
        loop {
            match self.charge() {
                Ok(()) => return Ok(()),
                Err(LoginRefusal::Busy) if clock::now() < limit => mailrun_net::sleep(CHARGE_RETRY_INTERVAL).await,
                Err(LoginRefusal::Busy) => return Err(self.refused(&BUSY_REPLY)),
                Err(LoginRefusal::Locked) => return Err(self.refused(&LOCKED_REPLY)),
            }
        }
    }

    fn refused(&self, reply: &Reply) -> Reply {
        self.context.counters.logins_refused.add(1);
        reply.clone()
    }

    fn check(&self, shown: &[u8]) -> Answer {
        let auth = Auth { mechanism: self.mechanism, name: &self.user, proof: Proof::Shown(shown) };
        let is_known = self.config.users.as_deref().is_some_and(|users| users.verify(&auth));
        self.record_outcome(if is_known { LoginOutcome::Succeeded } else { LoginOutcome::Failed });
        if is_known { Answer::Yes } else { Answer::Reply(ReplyReason::NotAuthenticated.reply().clone()) }
    }

    fn secret(&self) -> Answer {
        let auth = Auth { mechanism: self.mechanism, name: &self.user, proof: Proof::Digest };
        Answer::Secret(self.config.users.as_deref().and_then(|users| users.secret(&auth)))
    }

    /// Counts the login as succeeded or failed, in the statistics and in the login guard, which slows down clients
    /// after failures. Does nothing if the login was never counted as pending, because then no password or digest was
    /// checked.
    fn record_outcome(&self, outcome: LoginOutcome) {
        let Some(account) = self.charged_to.take() else { return };
        let guard = &self.context.login_guard;
        let limits = &self.config.login_limits;
        let now = clock::now();
        match outcome {
            LoginOutcome::Succeeded => {
                self.context.counters.logins.add(1);
                guard.succeeded(self.identity(), account, limits, now);
            }
            LoginOutcome::Failed => {
                self.context.counters.logins_failed.add(1);
                log(&self.context, &guard.failed(self.identity(), self.mechanism.name(), account, limits, now));
            }
        }
    }
}

pub(crate) fn log_summaries(context: &RelayContext) {
    log(context, &context.login_guard.summaries(clock::now()));
}

/// Writes log lines about logins. fail2ban reads these lines, so their format is documented and must stay the same.
fn log(context: &RelayContext, lines: &[LoginLogLine]) {
    let local = |client: &Option<ClientKey>| client.map_or_else(|| "uncounted".to_owned(), |client| client.to_string());
    for line in lines {
        match line {
            LoginLogLine::Failed { client, user, method, attempts } => {
                let client = local(client);
                let user = xtext::encode(user.as_bytes()).to_string();
                tracing::warn!(target: LOG_TARGET, "authentication failed: client={client} user={user} method={method} attempts={attempts}"
                );
            }
            LoginLogLine::Others { attempts } => {
                tracing::warn!(target: LOG_TARGET, "authentication failed: client=many attempts={attempts}");
            }
            LoginLogLine::Locked { client, user, for_s } => {
                context.counters.login_locks.add(1);
                let client = client.map_or_else(|| "any".to_owned(), |client| client.to_string());
                let user =
                    user.as_ref().map_or_else(|| "any".to_owned(), |user| xtext::encode(user.as_bytes()).to_string());
                tracing::warn!(target: LOG_TARGET, "authentication locked: client={client} user={user} for_s={for_s}");
            }
        }
    }
}
