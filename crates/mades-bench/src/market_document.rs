//! Writes market documents as XML. For each kind of message (`--shape`), the bench writes one document. For each
//! message of this kind, it changes only the mRID and the trace at the beginning of the document.
//!
//! The elements and their order follow the schemas of IEC 62325-451-7 and -451-6, and the values are invented. The
//! documents have a realistic size and compressibility, but nobody has validated them against a schema.
use super::market::MarketDocument;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::fmt::Write;

/// The fixed parts of a market document. The mRID and the trace stand between `before_id` and `head`. All time series
/// in `time_series` have the same length in bytes.
pub(super) struct DocumentText {
    pub(super) before_id: Vec<u8>,
    pub(super) head: Vec<u8>,
    pub(super) time_series: Vec<u8>,
    pub(super) tail: &'static [u8],
}

impl DocumentText {
    pub(super) fn new(document: MarketDocument, seed: u64) -> Self {
        match document {
            MarketDocument::Bids(time_series) => Self {
                before_id: before_id("ReserveBid_MarketDocument", "451-7:reservebiddocument:7:4"),
                head: head("A37", "A51"),
                time_series: bids(seed, time_series),
                tail: b"</ReserveBid_MarketDocument>\r\n",
            },
            MarketDocument::Heartbeat => Self {
                before_id: before_id("Activation_MarketDocument", "451-7:activationdocument:6:3"),
                head: head("A40", "A47"),
                time_series: Vec::new(),
                tail: b"</Activation_MarketDocument>\r\n",
            },
            MarketDocument::Value => Self {
                before_id: before_id("Balancing_MarketDocument", "451-6:balancingdocument:4:3"),
                head: head("A86", "A16"),
                time_series: quantities(seed, 1),
                tail: b"</Balancing_MarketDocument>\r\n",
            },
        }
    }
}

fn before_id(element: &str, schema: &str) -> Vec<u8> {
    format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\r\n\
         <{element} xmlns=\"urn:iec62325.351:tc57wg16:{schema}\">\r\n<mRID>"
    )
    .into_bytes()
}

/// Returns the text of a document from the end of the trace to the time series. It begins with `-->`, because the trace
/// stands in an XML comment.
fn head(kind: &str, process: &str) -> Vec<u8> {
    format!(
        "\r\n-->\r\n<revisionNumber>1</revisionNumber><type>{kind}</type>\
         <process.processType>{process}</process.processType>\
         <sender_MarketParticipant.mRID codingScheme=\"A01\">10V000000000001X</sender_MarketParticipant.mRID>\
         <sender_MarketParticipant.marketRole.type>A46</sender_MarketParticipant.marketRole.type>\
         <receiver_MarketParticipant.mRID codingScheme=\"A01\">10V000000000002V</receiver_MarketParticipant.mRID>\
         <receiver_MarketParticipant.marketRole.type>A34</receiver_MarketParticipant.marketRole.type>\
         <createdDateTime>2026-01-01T00:00:00Z</createdDateTime>\r\n"
    )
    .into_bytes()
}

fn bids(seed: u64, count: u32) -> Vec<u8> {
    let mut random = StdRng::seed_from_u64(seed);
    let mut text = String::new();
    for number in 1..=count {
        let direction = 1 + random.next_u32() % 2;
        let resource = random.next_u32() % 100_000;
        let quantity = 10 + random.next_u32() % 490;
        let price = random.next_u32() % 100_000;
        let euros = price / 100;
        let cents = price % 100;
        write!(
            text,
            "<Bid_TimeSeries><mRID>{number:08}</mRID><auction.mRID>MFRR_ENERGY_ACTIVATION_MARKET</auction.mRID>\
             <businessType>B74</businessType>\
             <acquiring_Domain.mRID codingScheme=\"A01\">10Y1001A1001A91G</acquiring_Domain.mRID>\
             <connecting_Domain.mRID codingScheme=\"A01\">10YNO-1--------2</connecting_Domain.mRID>\
             <quantity_Measurement_Unit.name>MAW</quantity_Measurement_Unit.name>\
             <currency_Unit.name>EUR</currency_Unit.name>\
             <price_Measurement_Unit.name>MWH</price_Measurement_Unit.name><divisible>A01</divisible>\
             <status><value>A06</value></status><flowDirection.direction>A0{direction}</flowDirection.direction>\
             <registeredResource.mRID codingScheme=\"NNO\">RESOURCE-{resource:05}</registeredResource.mRID>\
             <marketAgreement.mRID>AGREEMENT-1</marketAgreement.mRID>\
             <standard_MarketProduct.marketProductType>A05</standard_MarketProduct.marketProductType>\
             <Period><timeInterval><start>2026-01-01T00:00Z</start><end>2026-01-01T00:15Z</end></timeInterval>\
             <resolution>PT15M</resolution><Point><position>1</position><quantity.quantity>{quantity:03}</quantity.quantity>\
             <minimum_Quantity.quantity>010</minimum_Quantity.quantity>\
             <energy_Price.amount>{euros:03}.{cents:02}</energy_Price.amount></Point></Period></Bid_TimeSeries>\r\n"
        )
        .expect("a string takes all that is written");
    }
    text.into_bytes()
}

fn quantities(seed: u64, count: u32) -> Vec<u8> {
    let mut random = StdRng::seed_from_u64(seed);
    let mut text = String::new();
    for number in 1..=count {
        let quantity = random.next_u32() % 10_000;
        write!(
            text,
            "<TimeSeries><mRID>{number:08}</mRID><businessType>B33</businessType>\
             <area_Domain.mRID codingScheme=\"A01\">10YNO-1--------2</area_Domain.mRID>\
             <quantity_Measurement_Unit.name>MAW</quantity_Measurement_Unit.name>\
             <Period><timeInterval><start>2026-01-01T00:00Z</start><end>2026-01-01T00:15Z</end></timeInterval>\
             <resolution>PT15M</resolution><Point><position>1</position><quantity>{quantity:04}</quantity></Point></Period>\
             </TimeSeries>\r\n"
        )
        .expect("a string takes all that is written");
    }
    text.into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_document_is_xml_and_its_time_series_are_of_one_length() {
        for (document, expected) in
            [(MarketDocument::Bids(30), 30), (MarketDocument::Heartbeat, 0), (MarketDocument::Value, 1)]
        {
            let DocumentText { before_id, head, time_series, tail } = DocumentText::new(document, 1);
            let text = [&before_id, &b"1</mRID><!--"[..], &head, &time_series, tail].concat();
            let mut reader = quick_xml::Reader::from_reader(&text[..]);
            let mut count = 0_usize;
            loop {
                match reader.read_event().unwrap() {
                    quick_xml::events::Event::Eof => break,
                    quick_xml::events::Event::Start(start) => {
                        count += usize::from(start.name().as_ref().ends_with("TimeSeries"));
                    }
                    _ => {}
                }
            }
            assert_eq!(count, expected);
            assert_eq!(time_series.len() % expected.max(1), 0);
        }
        let large = DocumentText::new(MarketDocument::Bids(4_000), 1);
        assert!((4_000_000..6_000_000).contains(&large.time_series.len()), "{}", large.time_series.len());
    }
}
