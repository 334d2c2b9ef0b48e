CREATE TABLE orders (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, quantity integer NOT NULL CHECK (quantity > 0));
