DROP TABLE tidemill.alert_notice, tidemill.silence, tidemill.alert_history, tidemill.alert, tidemill.monitor_problem,
    tidemill.monitor_rebuild, tidemill.monitor_checkpoint, tidemill.monitor_entity, tidemill.monitor_tick,
    tidemill.monitor_event, tidemill.monitor_shard, tidemill.monitor;
