create table hookclaim_deliveries (
  source text not null check (length(source) between 1 and 128),
  key text not null check (length(cast(key as blob)) between 1 and 255),
  delivery_id text not null check (length(delivery_id) between 1 and 128),
  event text not null,
  action text,
  ordering_key text,
  state integer not null check (state between 0 and 4),
  attempts integer not null check (attempts >= 0),
  fence integer not null check (fence >= 0),
  claim_token blob not null check (length(claim_token) = 16),
  fingerprint blob check (length(fingerprint) = 16),
  received_at integer not null,
  claimed_at integer,
  renewed_at integer,
  lease_until integer,
  retry_at integer,
  finished_at integer,
  error_class text,
  last_error text,
  -- 1 processing: exactly then there is a lease
  constraint lease check ((state = 1) = (lease_until is not null and renewed_at is not null)),
  -- 2 completed, 4 dead: exactly then it is finished
  constraint finished check ((state in (2, 4)) = (finished_at is not null)),
  -- 0 received, 3 failed: exactly then another attempt is due some time
  constraint retry check ((state in (0, 3)) = (retry_at is not null))
) strict;
create unique index hookclaim_deliveries_key on hookclaim_deliveries (key, source);
create index hookclaim_deliveries_due on hookclaim_deliveries (retry_at) where state in (0, 3);
create index hookclaim_deliveries_past on hookclaim_deliveries (finished_at) where state in (2, 4);
-- Always empty: see poison.sql.
create table hookclaim_lease_lost (
  id integer primary key,
  needs integer not null references hookclaim_lease_lost (id) deferrable initially deferred
) strict;
