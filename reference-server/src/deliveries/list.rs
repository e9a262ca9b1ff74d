//! `hookclaim deliveries list`

use hookclaim::DeliveryStore;

use super::row::Row;
use super::{Pages, filter};
use crate::cli::ListDeliveries;
use crate::error::{Context as _, Error};
use crate::output::{Table, print};

/// Rows of a table if nothing else is asked for: what a person reads.
const TABLE: u64 = 50;

const HEAD: [&str; 8] = [
    "RECEIVED",
    "STATE",
    "EVENT",
    "ACTION",
    "ATTEMPTS",
    "DELIVERY",
    "COVERED BY",
    "ERROR",
];

pub(super) async fn run(store: &impl DeliveryStore, options: &ListDeliveries) -> Result<(), Error> {
    let limit = match options.limit {
        _ if options.all => None,
        Some(0) => None,
        None if options.json => None,
        Some(limit) => Some(limit),
        None => Some(TABLE),
    };
    let mut pages = Pages::new(store, filter(&options.filter)?, limit);
    let shown = if options.json {
        as_json(&mut pages).await?
    } else {
        as_table(&mut pages).await?
    };
    if pages.are_more().await? {
        eprintln!("note: there are more than these {shown}; --all shows all of them");
    }
    Ok(())
}

async fn as_table(pages: &mut Pages<'_, impl DeliveryStore>) -> Result<u64, Error> {
    let mut table = Table::new(&HEAD);
    let mut shown = 0;
    loop {
        let records = pages.next().await?;
        let cells: Vec<_> = records
            .iter()
            .map(|record| Row::of(record).cells())
            .collect();
        // The first page is printed even if it is empty: its head says that this is all there is.
        if records.is_empty() && shown > 0 {
            return Ok(shown);
        }
        print(&table.page(&cells))?;
        shown += records.len() as u64;
        if records.is_empty() {
            return Ok(shown);
        }
    }
}

/// One array, written as it is read: a list may be longer than memory.
async fn as_json(pages: &mut Pages<'_, impl DeliveryStore>) -> Result<u64, Error> {
    let mut shown = 0;
    let mut before = "[";
    loop {
        let records = pages.next().await?;
        if records.is_empty() {
            print(if shown == 0 { "[]\n" } else { "]\n" })?;
            return Ok(shown);
        }
        let mut text = String::new();
        for record in &records {
            text.push_str(before);
            text.push_str(&serde_json::to_string(&Row::of(record)).context("cannot write JSON")?);
            before = ",";
        }
        print(&text)?;
        shown += records.len() as u64;
    }
}
