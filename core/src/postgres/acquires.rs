//! Taking deliveries that are due.

use std::time::Instant;

use sqlx::Row as _;
use sqlx::postgres::PgRow;

use super::claims::attempts;
use super::link::{RESENDS, Statement, is_passing};
use super::pipeline::{Lost, PgPipeline};
use super::{rows, unavailable};
use crate::batch::{Taking, pause};
use crate::claim::Held;
use crate::error::StoreError;
use crate::inbox::{Acquire, Acquired, Acquisition, Lane, Order, Retired};
use crate::key::Scope;
use crate::machine;
use crate::record::{ClaimToken, State};
use crate::time::{Timestamp, micros};

pub(super) const DUE: &str = concat!(
    include_str!("acquire_due.sql"),
    include_str!("acquire_take.sql")
);
pub(super) const FRESH: &str = concat!(
    include_str!("acquire_fresh.sql"),
    include_str!("acquire_take.sql")
);
pub(super) const ACQUIRED: &str = include_str!("acquired.sql");

/// Deliveries that one statement takes at most, however many are asked for.
const MOST: u32 = 1000;

/// One look for due deliveries.
struct Look<'a> {
    acquire: &'a Acquire,
    /// How many are taken at most.
    limit: u32,
    /// The first and the last source that is looked for.
    range: (String, String),
    /// Where it begins; the beginning if none.
    mark: Option<i64>,
    /// Whether nobody else starts deliveries that have an order meanwhile.
    guarded: bool,
    now: Option<i64>,
}

impl Look<'_> {
    fn statement(&self, tokens: &[uuid::Uuid]) -> Statement {
        let acquire = self.acquire;
        let statement = match acquire.lane {
            Lane::Due => DUE,
            Lane::Fresh { .. } => FRESH,
        };
        let query = sqlx::query(statement)
            .bind(self.range.0.clone())
            .bind(self.range.1.clone())
            .bind(i64::from(self.limit))
            .bind(micros(acquire.policy.lease))
            .bind(attempts(acquire.policy.max_attempts))
            .bind(tokens.to_vec())
            .bind(self.now)
            .bind(machine::LEASE_EXPIRED)
            .bind(self.guarded)
            .bind(acquire.order == Order::Strict);
        let mark = self.mark.unwrap_or(i64::MIN);
        match acquire.lane {
            Lane::Due => query.bind(mark).bind(acquire.expired),
            Lane::Fresh { window, flood } => {
                query.bind(micros(window)).bind(i64::from(flood)).bind(mark)
            }
        }
    }
}

impl PgPipeline {
    pub(super) async fn acquire(&mut self, taking: &Taking) -> Result<Acquisition, StoreError> {
        let acquire = &taking.acquire;
        if acquire.limit == 0 {
            return Ok(Acquisition::default());
        }
        self.find_lost(taking).await;
        let range = range(acquire);
        // A clock of a test is set back and forth within what is a moment for marks.
        let mark = if self.clock.is_none() {
            self.marks.at(&range)
        } else {
            None
        };
        let mut look = Look {
            acquire,
            limit: acquire.limit.min(MOST),
            mark,
            guarded: self.marks.ordered(&range),
            range,
            now: self.now(),
        };
        let mut taken = Acquisition::default();
        while look.limit > 0 {
            let rows = match self.look(&look).await {
                Ok(rows) => rows,
                // Whoever has something to work on comes back for more.
                Err(_) if !taken.is_empty() => break,
                Err(error) => return Err(unavailable("no delivery could be taken", error)),
            };
            let summary = Summary::of(rows.first().ok_or_else(rows::corrupt)?)?;
            let count = self.read(taking, &rows, &mut taken)?;
            if summary.found {
                break;
            }
            look.limit = look.limit.saturating_sub(count);
            if acquire.lane == Lane::Due {
                let whole = look.mark.is_none();
                let (now, oldest) = (summary.now, summary.oldest);
                let valid = self
                    .marks
                    .looked(&look.range, whole, now, oldest, summary.ordered);
                if !valid && taken.is_empty() {
                    look.mark = None;
                    continue;
                }
            }
            let unguarded = summary.ordered && !look.guarded;
            look.guarded |= unguarded;
            if !(unguarded && count == 0 || summary.cut && count > 0) {
                break;
            }
        }
        Ok(taken)
    }

    /// Runs a look. Where its answer was lost, what it took is found by its tokens; only if it took nothing it is run
    /// again, under other tokens. It may still be under way then, so that its tokens are looked for once more later.
    async fn look(&mut self, look: &Look<'_>) -> Result<Vec<PgRow>, sqlx::Error> {
        let mut attempt = 0;
        loop {
            attempt += 1;
            let tokens: Vec<uuid::Uuid> = (0..look.limit)
                .map(|_| rows::uuid(ClaimToken::random()))
                .collect();
            let statement = || look.statement(&tokens);
            let error = match self.link.once(&statement, look.guarded).await {
                Ok(rows) => return Ok(rows),
                Err(error) => error,
            };
            if !is_passing(&error) || attempt > RESENDS {
                return Err(error);
            }
            tokio::time::sleep(pause(attempt)).await;
            let found = self
                .link
                .run(|| sqlx::query(ACQUIRED).bind(&tokens).bind(look.now))
                .await;
            if found.as_ref().is_ok_and(|rows| !rows.is_empty()) {
                return found;
            }
            self.lost.remember(&tokens);
            found?;
        }
    }

    /// Hands back what looks have taken that had been given up by then.
    async fn find_lost(&mut self, taking: &Taking) {
        let Some(until) = self.lost.until else {
            return;
        };
        let (tokens, now) = (self.lost.tokens.clone(), self.now());
        if Instant::now() >= until {
            self.lost = Lost::default();
        }
        let found = self
            .link
            .run(|| sqlx::query(ACQUIRED).bind(&tokens).bind(now))
            .await;
        let mut late = Acquisition::default();
        if found.is_ok_and(|rows| self.read(taking, &rows, &mut late).is_ok()) {
            let late: Vec<Held> = late.started.into_iter().map(|one| one.held).collect();
            self.release(&late).await;
        }
    }

    /// Reads what was taken, in the order of its turn, and says how many that are.
    fn read(
        &self,
        taking: &Taking,
        rows: &[PgRow],
        acquisition: &mut Acquisition,
    ) -> Result<u32, StoreError> {
        let mut turns: Vec<(i64, &PgRow)> = Vec::with_capacity(rows.len());
        for row in rows {
            // Without one, the row only says what was looked at.
            if let Some(ord) = row.try_get("ord").map_err(super::reading)? {
                turns.push((ord, row));
            }
        }
        turns.sort_unstable_by_key(|&(ord, _)| ord);
        for &(_, row) in &turns {
            let name = rows::name(row)?;
            let standing = rows::standing(row)?;
            if standing.state == State::Dead {
                acquisition.retired.push(Retired {
                    key: name.key,
                    delivery_id: name.delivery_id,
                    event: name.event,
                    attempts: standing.attempts,
                });
                continue;
            }
            let time = |column| -> Result<Timestamp, StoreError> {
                let micros = row.try_get(column).map_err(super::reading)?;
                Ok(Timestamp::from_micros(micros))
            };
            let now = time("now")?;
            let age = now.since(time("received_at")?);
            let request = rows::request(row, &name.key, &self.sealer)?;
            let policy = taking.acquire.policy;
            let (key, id) = (name.key, name.delivery_id);
            let held = machine::held(standing, key, id, policy, now, taking.sent);
            let ordered = row.try_get("has_order").map_err(super::reading)?;
            let print = standing.fingerprint;
            let acquired = Acquired::new(held, name.event, print, request, age, ordered);
            acquisition.started.push(acquired);
        }
        Ok(u32::try_from(turns.len()).unwrap_or(u32::MAX))
    }
}

/// What a look says beside what it took.
struct Summary {
    now: i64,
    oldest: Option<i64>,
    ordered: bool,
    /// Whether more was there than one answer carries.
    cut: bool,
    /// Whether it is not of a look, but of what a look had taken whose answer was lost.
    found: bool,
}

impl Summary {
    fn of(row: &PgRow) -> Result<Self, StoreError> {
        Ok(Self {
            now: row.try_get("now").map_err(super::reading)?,
            oldest: row.try_get("oldest").map_err(super::reading)?,
            ordered: row.try_get("ordered").map_err(super::reading)?,
            cut: row.try_get("cut").map_err(super::reading)?,
            found: row.try_get("found").map_err(super::reading)?,
        })
    }
}

/// The first and the last source that can be asked for. Sources are visible ASCII, and DEL comes after all of that.
fn range(acquire: &Acquire) -> (String, String) {
    let source = acquire.source.as_str();
    match acquire.scope {
        Scope::Endpoint => (source.to_owned(), source.to_owned()),
        Scope::HookId => (format!("{source}/hook/"), format!("{source}/hook/\u{7f}")),
    }
}
