-- Deliveries are stored with their payloads, for workers.
-- request: what a worker rebuilds the request from, as JSON; sealed_with: the key that the payload is sealed with, null
-- if it is not. What was accepted can be run. The payload comes last: whoever reads another column does not read it.
alter table hookclaim_deliveries add column request text check (state <> 0 or request is not null);
alter table hookclaim_deliveries add column sealed_with text;
alter table hookclaim_deliveries add column payload blob check ((request is null) = (payload is null));
-- Only what has its payload waits for a worker: what failed inline is in no queue.
drop index hookclaim_deliveries_due;
-- The source is in it so that what others wait for is passed over without being read.
create index hookclaim_deliveries_due on hookclaim_deliveries (retry_at, source)
  where state in (0, 3) and request is not null;
-- What a worker may have to take over.
create index hookclaim_deliveries_leased on hookclaim_deliveries (claimed_at)
  where state = 1 and request is not null;
-- Payloads that were kept of what is completed.
create index hookclaim_deliveries_kept on hookclaim_deliveries (finished_at)
  where state = 2 and request is not null;
-- What may stand before a delivery of the same ordering key: what runs, and what arrived earlier.
create index hookclaim_deliveries_order on hookclaim_deliveries (ordering_key, source, state, received_at)
  where ordering_key is not null and state in (0, 1, 3);
-- Deliveries whose work another delivery of the same business key does.
create table hookclaim_covered (
  received_at integer not null,
  source text not null,
  key text not null,
  delivery_id text not null check (length(delivery_id) between 1 and 128),
  event text not null,
  action text,
  primary key (key, source, delivery_id),
  foreign key (key, source) references hookclaim_deliveries (key, source) on delete cascade
) strict, without rowid;
-- What operators decided by hand. It outlives the deliveries.
create table hookclaim_audit (
  id integer primary key,
  at integer not null,
  actor text not null,
  action text not null check (action in ('retry', 'force')),
  reason text,
  source text not null,
  key text not null
) strict;
create index hookclaim_audit_key on hookclaim_audit (key, source);
