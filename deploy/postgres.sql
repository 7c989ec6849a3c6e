-- Run once by the PostgreSQL container when its volume is empty: the extension, and a role that owns the datastore
-- but is not a superuser.
\set password `cat "$DENN_DATABASE_PASSWORD_FILE"`
CREATE EXTENSION vector;
CREATE ROLE denn LOGIN PASSWORD :'password';
GRANT CREATE, CONNECT ON DATABASE :"DBNAME" TO denn;
ALTER ROLE denn SET maintenance_work_mem = '512MB';
