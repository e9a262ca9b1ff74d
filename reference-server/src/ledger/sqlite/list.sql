select
    id,
    date,
    created_at,
    github_user_id,
    github_username,
    repository,
    issue_number,
    minutes,
    description,
    labels,
    source_comment_url
from hookclaim_entries
where (?1 is null or lower(repository) = lower(?1))
    and (?2 is null or lower(github_username) = lower(?2))
    and (?3 is null or date >= ?3)
    and (?4 is null or date <= ?4)
order by
    date,
    id
