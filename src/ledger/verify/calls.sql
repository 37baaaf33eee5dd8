-- What an open reservation has in flight and unknown is what its calls say; and
-- what its calls have cost is in what it has settled. (A reservation that finance
-- has closed owes its calls nothing any more: they stay as they were.)
select format('reservation %s: in flight %s, of its attempt %s, unknown %s; its calls make %s, %s, %s',
              r.id, trim_scale(r.in_flight), trim_scale(r.attempt_in_flight), trim_scale(r.unknown_units),
              trim_scale(coalesce(c.in_flight, 0)), trim_scale(coalesce(c.attempt_in_flight, 0)),
              trim_scale(coalesce(c.unknown_units, 0)))
from reservation r
left join lateral (
    select sum(c.units) filter (where c.state = 'in_flight') as in_flight,
           sum(c.units) filter (where c.state = 'in_flight' and c.attempt_number = r.attempt_number)
               as attempt_in_flight,
           sum(c.units) filter (where c.state = 'unknown') as unknown_units
    from call c
    where c.account = r.account and c.reservation_id = r.id) c on true
where r.state in ('waiting', 'active', 'cancelling', 'fenced')
  and (r.in_flight, r.attempt_in_flight, r.unknown_units)
          is distinct from (coalesce(c.in_flight, 0), coalesce(c.attempt_in_flight, 0), coalesce(c.unknown_units, 0))
union all
select format('reservation %s: settled %s, its calls cost %s', r.id, trim_scale(r.settled), trim_scale(c.actual))
from (select account, reservation_id, sum(actual) as actual
      from call
      where state = 'settled'
      group by 1, 2) c
join reservation r on r.account = c.account and r.id = c.reservation_id
where c.actual > r.settled
union all
select format('call %s of reservation %s: admitted by attempt %s, which never was', c.key, c.reservation_id,
              c.attempt_number)
from call c
left join reservation r on r.account = c.account and r.id = c.reservation_id
where r.id is null or r.enforcement <> 'calls' or c.attempt_number > r.attempt_number
union all
select format('late usage %s of reservation %s: reported by attempt %s, which never was', l.id, l.reservation_id,
              l.attempt_number)
from late_usage l
left join reservation r on r.account = l.account and r.id = l.reservation_id
where r.id is null or l.attempt_number > r.attempt_number
