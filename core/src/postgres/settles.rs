//! What attempts write: their ends, renewals, and payloads for those who may have to take over.

use sqlx::Row as _;
use sqlx::postgres::PgRow;

use super::pipeline::PgPipeline;
use super::{rows, unavailable};
use crate::batch::{Keep, MAX_PAYLOADS, rounds};
use crate::error::StoreError;
use crate::key::ClaimKey;
use crate::machine;
use crate::record::State;
use crate::settle::{Settle, Settled};
use crate::time::Timestamp;

pub(super) const SETTLE: &str = include_str!("settle.sql");
pub(super) const KEEP: &str = include_str!("keep.sql");

impl PgPipeline {
    pub(super) async fn settles(
        &mut self,
        settles: &[Settle],
    ) -> Result<Vec<Result<Settled, StoreError>>, StoreError> {
        let mut answers: Vec<Option<Result<Settled, StoreError>>> =
            settles.iter().map(|_| None).collect();
        for round in rounds(settles) {
            let of = |at: usize| &settles[at];
            let sources: Vec<&str> = round
                .iter()
                .map(|&at| of(at).key.source().as_str())
                .collect();
            let keys: Vec<&str> = round.iter().map(|&at| of(at).key.key()).collect();
            let tokens: Vec<_> = round.iter().map(|&at| rows::uuid(of(at).token)).collect();
            let codes: Vec<i16> = round.iter().map(|&at| of(at).code()).collect();
            let spans: Vec<i64> = round.iter().map(|&at| of(at).span()).collect();
            let bounds: Vec<i64> = round.iter().map(|&at| of(at).bound()).collect();
            let classes: Vec<Option<&str>> = round.iter().map(|&at| of(at).class()).collect();
            let messages: Vec<Option<&str>> = round.iter().map(|&at| of(at).message()).collect();
            let now = self.now();
            let changed = self
                .link
                .run(|| {
                    sqlx::query(SETTLE)
                        .bind(&sources)
                        .bind(&keys)
                        .bind(&tokens)
                        .bind(&codes)
                        .bind(&spans)
                        .bind(&bounds)
                        .bind(&classes)
                        .bind(&messages)
                        .bind(now)
                })
                .await
                .map_err(|error| unavailable("the attempt could not be settled", error))?;
            for row in &changed {
                let ord: i64 = row.try_get("ord").map_err(super::reading)?;
                let at = usize::try_from(ord - 1)
                    .ok()
                    .and_then(|at| round.get(at))
                    .copied();
                let at = at.ok_or_else(rows::corrupt)?;
                answers[at] = Some(read_change(&settles[at], row));
            }
            let unchanged: Vec<usize> = round
                .into_iter()
                .filter(|&at| answers[at].is_none())
                .collect();
            if unchanged.is_empty() {
                continue;
            }
            let keys: Vec<&ClaimKey> = unchanged.iter().map(|&at| &settles[at].key).collect();
            let records = self.link.inspect(&keys).await?;
            for (at, record) in unchanged.into_iter().zip(records) {
                answers[at] = Some(settles[at].unchanged(record.as_ref()));
            }
        }
        Ok(answers
            .into_iter()
            .map(|answer| answer.unwrap_or_else(|| Err(rows::corrupt())))
            .collect())
    }

    /// Attaches payloads, each for itself, in statements of bounded size.
    pub(super) async fn keeps(&mut self, keeps: &[Keep]) -> Vec<Result<(), StoreError>> {
        let mut answers = Vec::with_capacity(keeps.len());
        let mut rest = keeps;
        while !rest.is_empty() {
            let mut size = 0_usize;
            let fitting = rest.iter().take_while(|keep| {
                size = size.saturating_add(keep.request.body().len());
                size <= MAX_PAYLOADS
            });
            let (group, later) = rest.split_at(fitting.count().max(1));
            match self.keep_group(group).await {
                Ok(kept) => answers.extend(kept),
                Err(error) => answers.extend(group.iter().map(|_| Err(error.clone()))),
            }
            rest = later;
        }
        answers
    }

    async fn keep_group(
        &mut self,
        group: &[Keep],
    ) -> Result<Vec<Result<(), StoreError>>, StoreError> {
        let sources: Vec<&str> = group
            .iter()
            .map(|keep| keep.key.source().as_str())
            .collect();
        let keys: Vec<&str> = group.iter().map(|keep| keep.key.key()).collect();
        let tokens: Vec<_> = group.iter().map(|keep| rows::uuid(keep.token)).collect();
        let requests: Vec<String> = group
            .iter()
            .map(|keep| keep.request.envelope_json())
            .collect();
        let sealed: Vec<_> = group
            .iter()
            .map(|keep| self.sealer.seal(&keep.key, keep.request.body()))
            .collect();
        let bodies: Vec<&[u8]> = sealed.iter().map(|(body, _)| &body[..]).collect();
        let sealed_with: Vec<Option<&str>> = sealed.iter().map(|(_, name)| *name).collect();
        let kept = self
            .link
            .run(|| {
                sqlx::query(KEEP)
                    .bind(&sources)
                    .bind(&keys)
                    .bind(&tokens)
                    .bind(&sealed_with)
                    .bind(&requests)
                    .bind(&bodies)
            })
            .await
            .map_err(|error| unavailable("the payload could not be kept", error))?;
        let mut answers: Vec<Option<Result<(), StoreError>>> = vec![None; group.len()];
        for row in &kept {
            let ord: i64 = row.try_get("ord").map_err(super::reading)?;
            let answer = usize::try_from(ord - 1)
                .ok()
                .and_then(|at| answers.get_mut(at));
            *answer.ok_or_else(rows::corrupt)? = Some(Ok(()));
        }
        let unchanged: Vec<usize> = (0..group.len())
            .filter(|&at| answers[at].is_none())
            .collect();
        if !unchanged.is_empty() {
            let keys: Vec<&ClaimKey> = unchanged.iter().map(|&at| &group[at].key).collect();
            let records = self.link.inspect(&keys).await?;
            for (at, record) in unchanged.into_iter().zip(records) {
                answers[at] = Some(match machine::keep(record.as_ref(), group[at].token) {
                    Ok(None) => Ok(()),
                    // It could have got it, and its row was locked.
                    Ok(Some(_)) => Err(StoreError::busy()),
                    Err(lost) => Err(lost.into()),
                });
            }
        }
        Ok(answers
            .into_iter()
            .map(|answer| answer.unwrap_or_else(|| Err(rows::corrupt())))
            .collect())
    }
}

fn read_change(settle: &Settle, row: &PgRow) -> Result<Settled, StoreError> {
    let time = |column| -> Result<Option<Timestamp>, StoreError> {
        Ok(row
            .try_get::<Option<i64>, _>(column)
            .map_err(super::reading)?
            .map(Timestamp::from_micros))
    };
    let state = State::from_code(row.try_get("state").map_err(super::reading)?)
        .ok_or_else(rows::corrupt)?;
    let now = time("now")?.ok_or_else(rows::corrupt)?;
    Ok(settle.changed(state, time("lease_until")?, time("retry_at")?, now))
}
