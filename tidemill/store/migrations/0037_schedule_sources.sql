-- What declares a schedule: the program, or workflow files. Each replaces only its own.
ALTER TABLE tidemill.schedule ADD COLUMN declared_by text NOT NULL DEFAULT 'program';
