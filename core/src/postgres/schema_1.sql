create table hookclaim_deliveries (
  received_at bigint not null,
  claimed_at bigint,
  renewed_at bigint,
  lease_until bigint,
  retry_at bigint,
  finished_at bigint,
  fence bigint not null check (fence >= 0),
  claim_token uuid not null,
  attempts integer not null check (attempts >= 0),
  state smallint not null check (state between 0 and 4),
  source text collate "C" not null check (octet_length(source) between 1 and 128),
  key text collate "C" not null check (octet_length(key) between 1 and 255),
  delivery_id text collate "C" not null check (octet_length(delivery_id) between 1 and 128),
  event text collate "C" not null,
  action text collate "C",
  ordering_key text collate "C",
  fingerprint bytea check (octet_length(fingerprint) = 16),
  error_class text collate "C",
  last_error text,
  -- 1 processing: exactly then there is a lease
  constraint hookclaim_deliveries_lease check ((state = 1) = (lease_until is not null and renewed_at is not null)),
  -- 2 completed, 4 dead: exactly then it is finished
  constraint hookclaim_deliveries_finished check ((state in (2, 4)) = (finished_at is not null)),
  -- 0 received, 3 failed: exactly then another attempt is due some time
  constraint hookclaim_deliveries_retry check ((state in (0, 3)) = (retry_at is not null)),
  -- key first: it tells rows apart at the first look, and most rows share their source
  constraint hookclaim_deliveries_key primary key (key, source)
) with (
  -- renewals stay within their page
  fillfactor = 85,
  autovacuum_vacuum_scale_factor = 0.02,
  autovacuum_vacuum_threshold = 1000,
  autovacuum_vacuum_insert_scale_factor = 0.05,
  autovacuum_analyze_scale_factor = 0.05,
  autovacuum_vacuum_cost_delay = 1
);
-- A claim writes to the primary key alone: an entry of its own costs every claim, and these two indexes hold only what
-- is not processing. lease_until is in no index, so that renewals are heap-only updates.
create index hookclaim_deliveries_due on hookclaim_deliveries (retry_at) where state in (0, 3);
create index hookclaim_deliveries_past on hookclaim_deliveries (finished_at) where state in (2, 4);
