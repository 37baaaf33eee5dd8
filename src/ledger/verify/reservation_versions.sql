-- Every change of a reservation raises its version by one, without gaps
-- (invariant 7): one event for each version, the last one as the reservation is.
select format('reservation %s: version %s, its history has %s events up to version %s',
              r.id, r.version, coalesce(e.events, 0), coalesce(e.newest, 0))
from reservation r
left join (select account, reservation_id, count(*) as events, max(version) as newest, min(version) as oldest
           from reservation_event
           group by 1, 2) e on e.account = r.account and e.reservation_id = r.id
where e.events is distinct from r.version or e.newest is distinct from r.version or e.oldest is distinct from 1
union all
select format('reservation %s: its last event says %s, ceiling %s, settled %s, reserved %s, liability %s and it is not so',
              r.id, e.state, trim_scale(e.ceiling), trim_scale(e.settled), trim_scale(e.reserved),
              trim_scale(e.liability))
from reservation r
join reservation_event e on e.account = r.account and e.reservation_id = r.id and e.version = r.version
where (e.state, e.ceiling, e.settled, e.reserved, e.liability)
          is distinct from (r.state, r.ceiling, r.settled, r.reserved, r.liability)
union all
select format('event %s of reservation %s: there is no such reservation', e.version, e.reservation_id)
from reservation_event e
where not exists (select from reservation r where r.account = e.account and r.id = e.reservation_id)
