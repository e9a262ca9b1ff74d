-- Rolls the handler's transaction back, so that it cannot be committed: the row breaks its constraints.
insert or rollback into hookclaim_deliveries (
  source, key, delivery_id, event, state, attempts, fence, claim_token, received_at
)
values ('', '', '', '', 9, 0, 0, x'', 0)
