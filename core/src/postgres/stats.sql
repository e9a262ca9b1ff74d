select state, count(*) as count
from hookclaim_deliveries
group by state
