//! The durable inbox on Postgres: the contract, and what many workers, old snapshots, broken connections and lost
//! notifications do to those who take from it.

use hookclaim::testing::{conformance, model};

use crate::stores::postgres;

#[tokio::test(flavor = "multi_thread")]
async fn the_contract_is_kept_clause_by_clause() {
    let bench = postgres().await;
    conformance::check_transactional_durable(&bench.store, &bench.clock).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn random_histories_agree_with_the_machine() {
    let bench = postgres().await;
    for seed in 0..8 {
        model::play_durable(&bench.store, &bench.clock, seed, 200).await;
    }
}
