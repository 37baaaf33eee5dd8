-- What a reservation holds follows from the one formula, and a closed one holds
-- nothing and has nothing outstanding (invariant 6). The schema refuses anything else; this says whether a
-- constraint has been lost.
select format('reservation %s: %s, holds %s reserved and %s in liability, the formula says %s and %s',
              r.id, r.state, trim_scale(r.reserved), trim_scale(r.liability),
              trim_scale(f.held - f.liability), trim_scale(f.liability))
from reservation r
cross join lateral (
    select held_units(r.state, r.ceiling, r.settled, r.in_flight + r.unknown_units + r.stated_outstanding) as held) h
cross join lateral (
    select h.held, liability_units(r.state, h.held, r.unknown_units, r.stated_outstanding) as liability) f
where r.reserved <> f.held - f.liability
   or r.liability <> f.liability
   or (r.state not in ('waiting', 'active', 'cancelling', 'fenced')
       and r.in_flight + r.unknown_units + r.stated_outstanding <> 0)
