-- Locks a claim's row for the handler's transaction. $1 source, $2 key, $3 token
select fence
from hookclaim_deliveries
where source = $1 and key = $2 and claim_token = $3 and state + 0 = 1
for no key update
