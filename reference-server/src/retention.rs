//! Forgetting what is past its retention, in small steps.

use std::time::Duration;

use hookclaim::{DeliveryStore, Pruned, Retention, StoreError};

/// Records in one step: few enough that a claim that comes in between does not notice.
const STEP: u32 = 500;

/// Between two steps, so that whatever waits for the database has its turn.
const PAUSE: Duration = Duration::from_millis(50);

/// Prunes step by step until nothing is left to prune. Each step is told, and `told` says whether to go on.
///
/// # Cancel safety
///
/// Steps that were told have happened; the one that was dropped may have.
pub(crate) async fn sweep(
    store: &impl DeliveryStore,
    retention: &Retention,
    mut told: impl FnMut(Pruned) -> bool,
) -> Result<(), StoreError> {
    loop {
        let step = store.prune(retention, STEP).await?;
        if !told(step) || !step.may_be_more(STEP) {
            return Ok(());
        }
        tokio::time::sleep(PAUSE).await;
    }
}
