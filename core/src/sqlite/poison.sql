-- Keeps the handler's transaction from being committed: the row asks for another that is not there, which is checked
-- at the commit.
insert into hookclaim_lease_lost (id, needs) values (1, 2)
