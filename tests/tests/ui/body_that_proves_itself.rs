//! Nobody but the verifier makes a signed body.

use bytes::Bytes;
use hookclaim::SignedBody;

fn believe(body: Bytes) -> SignedBody {
    SignedBody { bytes: body }
}

fn main() {}
