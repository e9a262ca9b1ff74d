//! A delivery is made of a body that was verified, and of no other.

use bytes::Bytes;
use hookclaim::{Delivery, DeliveryHead, Source};

fn believe(head: DeliveryHead, body: Bytes) {
    let _ = Delivery::new(head, body, Source::default());
}

fn main() {}
