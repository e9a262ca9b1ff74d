-- Deliveries are stored with their payloads, for workers.
alter table hookclaim_deliveries
  -- what a worker rebuilds the request from, as JSON
  add column request text,
  add column payload bytea,
  -- the key that the payload is sealed with; null: it is not
  add column sealed_with text collate "C",
  add constraint hookclaim_deliveries_payload check ((request is null) = (payload is null)),
  -- what was accepted can be run
  add constraint hookclaim_deliveries_received check (state <> 0 or request is not null),
  alter column payload set storage external;
-- Only what has its payload waits for a worker: what failed inline is in no queue. The columns after the first are for
-- workers of one source, who pass the rows of others without reading them, and make the order a whole one, so that
-- nothing has to be sorted.
drop index hookclaim_deliveries_due;
create index hookclaim_deliveries_due on hookclaim_deliveries (retry_at, source, key)
  where state in (0, 3) and request is not null;
-- What a worker may have to take over. lease_until is in no index, so that renewals are heap-only updates.
create index hookclaim_deliveries_leased on hookclaim_deliveries (claimed_at, source, key)
  where state = 1 and request is not null;
-- Payloads that were kept of what is completed.
create index hookclaim_deliveries_kept on hookclaim_deliveries (finished_at)
  where state = 2 and request is not null;
-- Who stands before a delivery in its order, and whether one of the same order runs. The predicates keep each question
-- to its index.
create index hookclaim_deliveries_order on hookclaim_deliveries (ordering_key, source, received_at, key)
  where ordering_key is not null and request is not null and state in (0, 1, 3);
create index hookclaim_deliveries_running on hookclaim_deliveries (ordering_key, source)
  where ordering_key is not null and state = 1;
-- Deliveries whose work another delivery of the same business key does.
create table hookclaim_covered (
  received_at bigint not null,
  source text collate "C" not null,
  key text collate "C" not null,
  delivery_id text collate "C" not null check (octet_length(delivery_id) between 1 and 128),
  event text collate "C" not null,
  action text collate "C",
  primary key (key, source, delivery_id),
  foreign key (key, source) references hookclaim_deliveries (key, source) on delete cascade
);
-- What operators decided by hand. It outlives the deliveries.
create table hookclaim_audit (
  id bigint generated always as identity primary key,
  at bigint not null,
  actor text not null,
  action text not null check (action in ('retry', 'force')),
  reason text,
  source text collate "C" not null,
  key text collate "C" not null
);
create index hookclaim_audit_key on hookclaim_audit (key, source);
