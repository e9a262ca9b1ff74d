//! `hookclaim deliveries prune`

use hookclaim::{DeliveryStore, Pruned, Retention};
use serde::Serialize;

use crate::cli::PruneDeliveries;
use crate::error::{Context as _, Error};
use crate::output::{print, print_json};
use crate::{progress, retention};

pub(super) async fn run(
    store: &impl DeliveryStore,
    keep: &Retention,
    options: &PruneDeliveries,
) -> Result<(), Error> {
    let spinner = progress::spinner();
    let mut all = Pruned::default();
    let swept = retention::sweep(store, keep, |step| {
        all.records += step.records;
        all.payloads += step.payloads;
        spinner.set_message(text(all));
        spinner.tick();
        true
    })
    .await;
    spinner.finish_and_clear();
    swept.context(format!("cannot prune on; so far {}", text(all)))?;
    if options.json {
        return print_json(&[Row {
            records: all.records,
            payloads: all.payloads,
        }]);
    }
    print(&format!("{}\n", text(all)))
}

fn text(pruned: Pruned) -> String {
    let of =
        |count: u64, name: &str| format!("{count} {name}{}", if count == 1 { "" } else { "s" });
    format!(
        "{} forgotten, {} dropped",
        of(pruned.records, "record"),
        of(pruned.payloads, "payload")
    )
}

#[derive(Debug, Serialize)]
struct Row {
    records: u64,
    payloads: u64,
}
