"""`tidemill pipeline`: run pipelines, plan, explain and rebuild states."""
